//! The tool `inorder`.
fn main() {}
