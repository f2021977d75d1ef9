//! Certificates of the tests' own.

use std::fs;
use std::path::{Path, PathBuf};

use inorder::testing::{TempPostgres, TempPostgresBuilder};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

/// A CA, and a folder with what it signed.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.crt"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    /// The file with its own certificate.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// The files of a server's certificate, for these names, and of its key.
    pub(crate) fn server(&self, names: &[&str]) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.signed("server", &params)
    }

    /// The files of the certificate of a client whose user has this name, and of its key.
    pub(crate) fn client(&self, user: &str) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.signed(user, &params)
    }

    fn signed(&self, name: &str, params: &CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |ending: &str| self.folder.path().join(format!("{name}.{ending}"));
        fs::write(file("crt"), certificate.pem()).unwrap();
        fs::write(file("key"), key.serialize_pem()).unwrap();
        (file("crt"), file("key"))
    }
}

/// A server that can encrypt, with a certificate for these names; clients' certificates are looked at where `pg_hba.conf` says so.
pub(crate) async fn encrypting_server(
    authority: &Authority,
    names: &[&str],
    adjust: impl FnOnce(TempPostgresBuilder) -> TempPostgresBuilder,
) -> TempPostgres {
    let server = adjust(TempPostgres::builder()).start().await.unwrap_or_else(|e| panic!("{e:?}"));
    let (certificate, key) = authority.server(names);
    for (from, to) in [(certificate, "server.crt"), (key, "server.key"), (authority.root(), "ca.crt")] {
        as_the_server(&server, &from, to);
    }
    append(&server, "postgresql.conf", "ssl = on\nssl_ca_file = 'ca.crt'\n");
    server.restart().await.unwrap();
    server
}

/// The server lets in whom these lines of `pg_hba.conf` let in, and nobody else.
pub(crate) async fn let_in(server: &TempPostgres, lines: &str) {
    fs::write(server.data_dir().join("pg_hba.conf"), lines).unwrap();
    server.restart().await.unwrap();
}

fn append(server: &TempPostgres, file: &str, lines: &str) {
    let path = server.data_dir().join(file);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, text + lines).unwrap();
}

/// Puts a file into the data folder, which belongs to the account that runs the server.
fn as_the_server(server: &TempPostgres, from: &Path, to: &str) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    let folder = server.data_dir();
    let to = folder.join(to);
    fs::copy(from, &to).unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(&folder).unwrap();
    chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
}
