//! The way out: TLS with an authority of one's own, and a proxy.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use longhaul_gateway::ports::SystemClock;
use longhaul_gateway::{Gateway, GatewayConfig, GatewayError, Surface};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::common::{Keys, Setup, call};
use crate::standin::Standin;

/// A stand-in behind TLS, and the certificate that it shows, for a name.
pub(super) async fn tls(vendor: &Standin, name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let behind = vendor.address;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut vendor = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut vendor).await;
            });
        }
    });
    (format!("https://{name}:{port}"), made.cert.pem())
}

#[tokio::test]
async fn a_vendor_behind_tls_is_reached_by_who_trusts_it_and_by_nobody_else() {
    let vendor = Standin::start().await;
    let (url, pem) = tls(&vendor, "localhost").await;
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("ca.pem");
    std::fs::write(&roots, pem).unwrap();
    let trusting = roots.clone();
    let urls = [url];
    let world =
        Setup { config: Box::new(move |config| config.extra_roots = vec![trusting]), ..Setup::at(&urls) }.open();
    world.account.call(call(Surface::Messages)).await.unwrap();
    let distrusting = Setup {
        config: Box::new(|config| config.down_limit = std::time::Duration::from_millis(100)),
        ..Setup::at(&urls)
    }
    .open();
    let error = distrusting.account.call(call(Surface::Messages)).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(vendor.calls().len(), 1);
    assert!(distrusting.account.totals().settled.is_zero(), "nothing was sent");
}

#[tokio::test]
async fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("ca.pem");
    std::fs::write(&roots, "nothing").unwrap();
    let mut config = GatewayConfig::new(Arc::new(SystemClock), 1);
    config.extra_roots = vec![roots];
    let error = Gateway::new(config, Arc::new(Keys::default())).unwrap_err();
    assert!(matches!(&error, GatewayError::Roots { path, .. } if path.ends_with("ca.pem")), "{error}");
}

#[tokio::test]
async fn a_proxy_is_used_but_for_hosts_that_are_reached_directly() {
    let vendor = Standin::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://user:word@{}", listener.local_addr().unwrap());
    let (tunnels, heads) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(String::new())));
    tokio::spawn({
        let (tunnels, heads) = (Arc::clone(&tunnels), Arc::clone(&heads));
        async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                tunnels.fetch_add(1, Ordering::Relaxed);
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let to = head.split(' ').nth(1).unwrap().to_owned();
                heads.lock().unwrap().push_str(&head);
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(to).await.unwrap();
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        }
    });
    let through = proxy.clone();
    let world =
        Setup { config: Box::new(move |config| config.proxies.http = through), ..Setup::at(&[vendor.url()]) }.open();
    world.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!(tunnels.load(Ordering::Relaxed), 1);
    let head = heads.lock().unwrap().clone();
    assert!(head.starts_with("CONNECT ") && head.to_lowercase().contains("proxy-authorization: basic"), "{head}");
    let direct = Setup {
        config: Box::new(move |config| {
            config.proxies.http = proxy;
            config.proxies.none = "127.0.0.1".to_owned();
        }),
        ..Setup::at(&[vendor.url()])
    }
    .open();
    direct.account.call(call(Surface::Messages)).await.unwrap();
    assert_eq!((tunnels.load(Ordering::Relaxed), vendor.calls().len()), (1, 2));
}
