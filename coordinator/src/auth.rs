//! Who may speak to the coordinator.
//!
//! On the unix socket the kernel says who is there: the same user, or root. On TCP the
//! client shows a token, inside TLS: the coordinator's own, or that of an allocation, which
//! speaks for that allocation's worker alone. Nothing is answered before that.

use longhaul_core::digest::Digest;
use longhaul_engine::AllocationId;
use longhaul_proto::access::Secret;
use tonic::service::Interceptor;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::passes::Passes;

/// Who asks, as the gate found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The coordinator's own user.
    Person,
    /// The worker of an allocation.
    Allocation(AllocationId),
}

/// Refuses whoever is not the coordinator's own user: an allocation runs episodes, and commands
/// nothing.
pub(crate) fn person<T>(request: &Request<T>) -> Result<(), Status> {
    match request.extensions().get::<Caller>() {
        Some(Caller::Person) => Ok(()),
        Some(Caller::Allocation(_)) | None => Err(Status::permission_denied("an allocation's token commands nothing")),
    }
}

/// The check in front of every service.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    /// A unix socket: the peer's user must be this one, or root.
    Peer {
        /// The coordinator's own user.
        uid: u32,
    },
    /// TCP with TLS: a token is shown.
    Token {
        /// The digest of the coordinator's own.
        person: Digest,
        /// Those of allocations.
        passes: Passes,
    },
}

impl Gate {
    pub(crate) fn token(token: &Secret, passes: Passes) -> Self {
        Self::Token { person: Digest::of(token.expose().as_bytes()), passes }
    }

    fn check(&self, request: &Request<()>) -> Result<Caller, &'static str> {
        match self {
            Self::Peer { uid } => {
                let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
                match peer {
                    Some(peer) if peer.uid() == *uid || peer.uid() == 0 => Ok(Caller::Person),
                    Some(_) => Err("the coordinator belongs to another user"),
                    None => Err("the system does not say who is at the other end of the socket"),
                }
            }
            Self::Token { person, passes } => {
                let shown = request
                    .metadata()
                    .get("authorization")
                    .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
                    .ok_or("no token was shown")?;
                let shown = Digest::of(shown);
                if same(&shown, person) {
                    return Ok(Caller::Person);
                }
                // Looked up by its digest, of which the time that it takes tells nothing useful.
                passes
                    .holder(&shown)
                    .map(Caller::Allocation)
                    .ok_or("the token is another one, or its allocation is over")
            }
        }
    }
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        match self.check(&request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Ok(request)
            }
            Err(reason) => {
                tracing::warn!(reason, "a request was refused");
                Err(match self {
                    Self::Peer { .. } => Status::permission_denied(reason),
                    Self::Token { .. } => Status::unauthenticated(reason),
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
    fn only_a_token_opens_the_gate_and_that_of_an_allocation_commands_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let passes = Passes::open(dir.path().join("p"), "host", 1, "").expect("passes");
        let token = longhaul_engine::Token("longhaul.me.1".to_owned());
        passes.issue(&token, 1).expect("issued");
        let path = dir.path().join("p").join(&token.0).join("0.json");
        let Ok(longhaul_proto::access::Access { address, .. }) = longhaul_proto::access::Access::read(&path) else {
            panic!("an access file");
        };
        let longhaul_proto::access::Address::Tls { token: secret, .. } = address else { panic!("of TLS") };
        let mut gate = Gate::token(&Secret::new("right".to_owned()), passes.clone());
        assert_eq!(gate.check(&with_header("Bearer right")), Ok(Caller::Person));
        let of_allocation = format!("Bearer {}", secret.expose());
        let allocation = Caller::Allocation(AllocationId { token: token.clone(), task: 0 });
        assert_eq!(gate.check(&with_header(&of_allocation)), Ok(allocation));
        assert!(person(&gate.call(with_header(&of_allocation)).expect("it opens")).is_err());
        assert!(person(&gate.call(with_header("Bearer right")).expect("it opens")).is_ok());
        assert!(person(&Request::new(())).is_err(), "nobody was asked");
        passes.revoke(&token, &std::collections::BTreeSet::new()).expect("revoked");
        assert!(gate.check(&with_header(&of_allocation)).is_err());
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
