//! Who may speak to the coordinator.
//!
//! On the unix socket the kernel says who is there: the same user, or root. On TCP the
//! client shows the token, inside TLS. Nothing is answered before that.

use longhaul_core::digest::Digest;
use longhaul_proto::access::Secret;
use tonic::service::Interceptor;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

/// The check in front of every service.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    /// A unix socket: the peer's user must be this one, or root.
    Peer {
        /// The coordinator's own user.
        uid: u32,
    },
    /// TCP with TLS: the digest of the token.
    Token(Digest),
}

impl Gate {
    pub(crate) fn token(token: &Secret) -> Self {
        Self::Token(Digest::of(token.expose().as_bytes()))
    }

    fn check(&self, request: &Request<()>) -> Result<(), &'static str> {
        match self {
            Self::Peer { uid } => {
                let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
                match peer {
                    Some(peer) if peer.uid() == *uid || peer.uid() == 0 => Ok(()),
                    Some(_) => Err("the coordinator belongs to another user"),
                    None => Err("the system does not say who is at the other end of the socket"),
                }
            }
            Self::Token(expected) => {
                let shown = request
                    .metadata()
                    .get("authorization")
                    .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
                    .ok_or("no token was shown")?;
                if same(&Digest::of(shown), expected) { Ok(()) } else { Err("the token is another one") }
            }
        }
    }
}

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        match self.check(&request) {
            Ok(()) => Ok(request),
            Err(reason) => {
                tracing::warn!(reason, "a request was refused");
                Err(match self {
                    Self::Peer { .. } => Status::permission_denied(reason),
                    Self::Token(_) => Status::unauthenticated(reason),
                })
            }
        }
    }
}

/// Compares without stopping at the first difference; that digests are compared also
/// hides the token's length.
fn same(one: &Digest, other: &Digest) -> bool {
    one.as_bytes().iter().zip(other.as_bytes()).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_header(value: &str) -> Request<()> {
        let mut request = Request::new(());
        request.metadata_mut().insert("authorization", value.parse().expect("a header value"));
        request
    }

    #[test]
    fn only_the_token_opens_the_gate() {
        let gate = Gate::token(&Secret::new("right".to_owned()));
        assert_eq!(gate.check(&with_header("Bearer right")), Ok(()));
        for wrong in ["Bearer wrong", "Bearer ", "right", "bearer right", "Bearer right "] {
            assert!(gate.check(&with_header(wrong)).is_err(), "{wrong}");
        }
        assert!(gate.check(&Request::new(())).is_err());
    }

    #[test]
    fn a_peer_that_nobody_vouches_for_is_refused() {
        assert!(Gate::Peer { uid: 1000 }.check(&Request::new(())).is_err());
    }
}
