//! Encrypted connections. The only file that names the library for them.
//!
//! What each `sslmode` checks is what PostgreSQL's own clients check: `require` encrypts and asks nobody who answers, unless a
//! root certificate is given; `verify-ca` wants a certificate that a known CA has signed, `verify-full` one for the name that was
//! asked for. Files are read at each connection: a certificate that was renewed is used from the next one on.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::target::{Encryption, Roots, SslMode};
use super::unclosed::Unclosed;
use crate::error::{Error, ErrorKind};

/// What makes a connection an encrypted one.
pub(crate) type MakeTls = MakeRustlsConnect;

/// Whether connections can be encrypted at all.
pub(super) const AVAILABLE: bool = true;

/// Ready for one connection.
///
/// # Errors
/// [`ErrorKind::Config`] names the file that cannot be read or does not hold what it should.
pub(super) fn make(encryption: &Encryption) -> Result<MakeTls, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Verifier {
        known: match encryption.mode {
            SslMode::VerifyCa | SslMode::VerifyFull => Some(known(encryption)?),
            _ => None,
        },
        by_name: encryption.mode == SslMode::VerifyFull,
        provider: Arc::clone(&provider),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::with_source(ErrorKind::Config, "preparing TLS", e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match own(encryption)? {
        None => builder.with_no_client_auth(),
        Some((certificates, key, from)) => builder.with_client_auth_cert(certificates, key).map_err(|e| {
            Error::with_source(
                ErrorKind::Config,
                format!("the client certificate {} and its key do not fit together", from.display()),
                e,
            )
        })?,
    };
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

/// A handshake with the server of this name, whose connection is not closed by us.
pub(super) fn unclosed(tls: MakeTls, name: &str) -> Handshake {
    Handshake { tls, name: name.to_owned() }
}

pub(super) struct Handshake {
    tls: MakeTls,
    name: String,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Unclosed<<MakeTls as MakeTlsConnect<S>>::Stream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, Self::Error>> + Send>>;

    fn connect(mut self, stream: S) -> Self::Future {
        let connector = MakeTlsConnect::<S>::make_tls_connect(&mut self.tls, &self.name);
        Box::pin(async move { Ok(Unclosed(connector?.connect(stream).await?)) })
    }
}

impl<S: TlsStream + Unpin> TlsStream for Unclosed<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.0.channel_binding()
    }
}

/// What the handshake failed of, and what to do, where more can be said than the library does.
pub(super) fn advice(error: &tokio_postgres::Error) -> Option<&'static str> {
    let io = std::error::Error::source(error)?.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref::<TlsError>()? {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => Some(
            "the server's certificate is signed by nobody who is trusted here: is that the server, and is sslrootcert its CA?",
        ),
        TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(
            "the server's certificate is for another name: connect by a name that it holds as subject alternative name, or have \
             one issued for this name",
        ),
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Some("the server's certificate has expired: have it renewed")
        }
        TlsError::AlertReceived(_) => Some(
            "the server broke the handshake off: does it accept this client's certificate? see sslcert and its log",
        ),
        _ => None,
    }
}

/// The CAs that are known, and their certificates as they are.
#[derive(Debug)]
struct Known {
    roots: Arc<RootCertStore>,
    certificates: Vec<CertificateDer<'static>>,
}

fn known(encryption: &Encryption) -> Result<Known, Error> {
    let file = match &encryption.roots {
        Some(Roots::System) => return system(),
        Some(Roots::File(file)) => file.clone(),
        None => ours("root.crt").ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                format!(
                    "sslmode={} needs to know whom to trust: give sslrootcert=FILE with the certificate of the server's CA, or \
                     sslrootcert=system for those that this machine trusts",
                    encryption.mode.name()
                ),
            )
        })?,
    };
    let what = || format!("the root certificates in {}", file.display());
    let certificates = certificates(&file).map_err(|e| e.named(what()))?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|e| Error::with_source(ErrorKind::Config, what(), e))?;
    }
    Ok(Known { roots: Arc::new(roots), certificates })
}

/// Read once: there are many, and they change with the machine.
fn system() -> Result<Known, Error> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = SYSTEM.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err(Error::new(
            ErrorKind::Config,
            "sslrootcert=system: this machine has no root certificates; install them (ca-certificates), name their file in \
             SSL_CERT_FILE, or give sslrootcert=FILE",
        ));
    }
    Ok(Known { roots: Arc::clone(roots), certificates: Vec::new() })
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, PathBuf);

/// The client's own certificate.
fn own(encryption: &Encryption) -> Result<Option<Own>, Error> {
    if encryption.mode == SslMode::Disable {
        return Ok(None);
    }
    let Some(file) = encryption.certificate.clone().or_else(|| ours("postgresql.crt")) else {
        return Ok(None);
    };
    let key = encryption.key.clone().or_else(|| ours("postgresql.key")).ok_or_else(|| {
        Error::new(
            ErrorKind::Config,
            format!("the client certificate {} has no key: give sslkey=FILE", file.display()),
        )
    })?;
    let certificates =
        certificates(&file).map_err(|e| e.named(format!("the client certificate {}", file.display())))?;
    let key = PrivateKeyDer::from_pem_file(&key).map_err(|e| {
        Error::with_source(
            ErrorKind::Config,
            format!("the key {}; it must be an unencrypted private key in PEM form", key.display()),
            e,
        )
    })?;
    Ok(Some((certificates, key, file)))
}

/// Why a file of certificates is of no use.
struct Unusable(Box<dyn std::error::Error + Send + Sync>);

impl Unusable {
    fn named(self, what: String) -> Error {
        Error::with_source(ErrorKind::Config, what, self.0)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(Unusable("holds no certificate in PEM form".into()))
        }
        Ok(certificates) => Ok(certificates),
        Err(e) => Err(Unusable(e.into())),
    }
}

/// A file in the folder in which PostgreSQL's clients look, if it is there.
fn ours(name: &str) -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("HOME")?).join(".postgresql").join(name);
    file.exists().then_some(file)
}

/// Checks as much of who answers as the mode asks for.
#[derive(Debug)]
struct Verifier {
    /// `None`: anybody.
    known: Option<Known>,
    by_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let Some(known) = &self.known else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &known.roots,
            intermediates,
            now,
            algorithms,
        ) {
            Ok(()) => {}
            // A server whose certificate is its own CA: it was named as the one to trust. (Its dates have been looked at.)
            Err(TlsError::InvalidCertificate(CertificateError::Other(_)))
                if known.certificates.iter().any(|known| known == end_entity) => {}
            Err(error) => return Err(error),
        }
        if self.by_name {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
