//! Model calls relayed for nodes without internet: the coordinator connects to a vendor, and bytes
//! pass between the worker and that connection.
//!
//! Nothing is read here: the worker's gateway bounds, reserves, records and settles its calls as
//! always, and speaks TLS with the vendor inside. A connection goes to addresses of endpoints alone that a
//! run which is not over lets be relayed, so that nobody with a worker's token has a way anywhere
//! else. Who is too fast is held back by HTTP/2's windows; who is silent for longer than any call of that
//! endpoint may take is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use longhaul_core::endpoint::{Destination, GatewayPlan};
use longhaul_core::ids::RunId;
use longhaul_proto::v1;
use longhaul_proto::v1::relay_service_server::RelayService;
use longhaul_proto::v1::relay_up::Message as Up;
use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::replicas;

/// The most connections at one time, over all workers; fewer where the system lets this process
/// have few open files, of which half are left to everything else.
const MOST: u64 = 1024;

/// How long a free place is waited for, and then again how long a connection may take: together
/// less than a gateway waits.
const CONNECT_LIMIT: Duration = Duration::from_secs(6);

/// The most that is read at one time.
const PIECE: usize = 64 * 1024;

/// Pieces that wait for a worker.
const AHEAD: usize = 4;

/// How long a vendor may take nothing of what is sent to it.
const STALLED: Duration = Duration::from_secs(60);

/// How much longer than its longest call a connection may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Where connections may go, by the runs that need them, and how long each may be silent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    runs: BTreeMap<RunId, Ways>,
    /// Where files of addresses lead now.
    files: BTreeMap<String, BTreeSet<Destination>>,
}

/// The ways of a run.
#[derive(Debug, Default)]
struct Ways {
    fixed: BTreeMap<Destination, Duration>,
    /// To wherever a file says.
    files: BTreeMap<String, Duration>,
}

impl Ways {
    fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.files.is_empty()
    }
}

impl Routes {
    /// A run may call these endpoints.
    pub(crate) fn learn(&self, run: RunId, plan: &GatewayPlan) {
        let mut ways = Ways::default();
        for endpoint in plan.endpoints.iter().filter(|endpoint| endpoint.relay) {
            let silence = endpoint.call_limit.to_std() + SILENCE;
            for to in endpoint.urls.iter().filter_map(|url| Destination::of(url)) {
                let known = ways.fixed.entry(to).or_insert(silence);
                *known = silence.max(*known);
            }
            if let Some(file) = &endpoint.replicas_file {
                let known = ways.files.entry(file.clone()).or_insert(silence);
                *known = silence.max(*known);
            }
        }
        if !ways.is_empty() {
            self.0.write().unwrap_or_else(PoisonError::into_inner).runs.insert(run, ways);
        }
    }

    /// Files of addresses lead there from now on; what is connected stays so.
    pub(crate) fn moved(&self, files: &BTreeMap<String, replicas::Known>) {
        let lead = |known: &replicas::Known| known.urls.iter().filter_map(|url| Destination::of(url)).collect();
        let files = files.iter().map(|(file, known)| (file.clone(), lead(known))).collect();
        self.0.write().unwrap_or_else(PoisonError::into_inner).files = files;
    }

    /// Runs that are over need nothing any more.
    pub(crate) fn forget(&self, is_open: impl Fn(RunId) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).runs.retain(|run, _| is_open(*run));
    }

    /// How long a connection to there may be silent; none if there may be none.
    fn find(&self, to: &Destination) -> Option<Duration> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let leads = |file: &String| known.files.get(file).is_some_and(|there| there.contains(to));
        let fixed = known.runs.values().filter_map(|ways| ways.fixed.get(to));
        let files = known.runs.values().flat_map(|ways| &ways.files).filter(|(file, _)| leads(file));
        fixed.chain(files.map(|(_, silence)| silence)).max().copied()
    }
}

/// The service for relayed connections.
#[derive(Clone, Debug)]
pub(crate) struct Relays {
    routes: Routes,
    places: Arc<Semaphore>,
    most: usize,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Relays {
    pub(crate) fn new(routes: Routes, stop: CancellationToken, tasks: TaskTracker) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(MOST, |(files, _)| files);
        Self::with_most(usize::try_from(MOST.min(files / 2)).unwrap_or(1), routes, stop, tasks)
    }

    fn with_most(most: usize, routes: Routes, stop: CancellationToken, tasks: TaskTracker) -> Self {
        Self { routes, places: Arc::new(Semaphore::new(most)), most, stop, tasks }
    }

    /// A connection to there, the place that it takes, and how long it may be silent.
    async fn connect(&self, to: &Destination) -> Result<(TcpStream, OwnedSemaphorePermit, Duration), Status> {
        let silence = self.routes.find(to).ok_or_else(|| {
            tracing::warn!(%to, "a connection was not relayed: no endpoint of a run is there");
            Status::permission_denied(format!(
                "no endpoint that a run lets be relayed is at {to}: set `relay = true` for it"
            ))
        })?;
        let full = |_| Status::resource_exhausted(format!("{} connections are relayed already", self.most));
        let place = timeout(CONNECT_LIMIT, Arc::clone(&self.places).acquire_owned()).await.map_err(full)?;
        let place = place.map_err(|_| Status::unavailable("the coordinator stops"))?;
        let failed = |reason: String| Status::unavailable(format!("{to} cannot be reached: {reason}"));
        let connecting = timeout(CONNECT_LIMIT, TcpStream::connect((to.host.as_str(), to.port)));
        let late = |_| failed(format!("no connection within {} seconds", CONNECT_LIMIT.as_secs()));
        let stream = connecting.await.map_err(late)?.map_err(|error| failed(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        Ok((stream, place, silence))
    }
}

#[tonic::async_trait]
impl RelayService for Relays {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<v1::RelayDown, Status>> + Send>>;

    async fn open(&self, request: Request<Streaming<v1::RelayUp>>) -> Result<Response<Self::OpenStream>, Status> {
        let mut incoming = request.into_inner();
        let late = |_| Status::deadline_exceeded("nothing was said of where to");
        let first = timeout(CONNECT_LIMIT, incoming.message()).await.map_err(late)??;
        let Some(v1::RelayUp { message: Some(Up::To(to)) }) = first else {
            return Err(Status::invalid_argument("the first message says where to"));
        };
        let port = u16::try_from(to.port).map_err(|_| Status::invalid_argument(format!("{} is no port", to.port)))?;
        let to = Destination { host: to.host.to_ascii_lowercase(), port };
        let (stream, place, silence) = self.connect(&to).await?;
        let (pieces, receiver) = mpsc::channel(AHEAD);
        // What broke must not look like an end, however many pieces still wait before it.
        let (last, end) = mpsc::channel(1);
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let ended = tokio::select! {
                ended = carry(stream, incoming, &pieces, silence) => ended,
                () = stop.cancelled() => Err("the coordinator stops".to_owned()),
            };
            if let Err(reason) = ended {
                tracing::debug!(%to, reason, "a relayed connection broke");
                // There is room for one, and a worker that is gone needs none.
                let _ = last.try_send(Err(Status::unavailable(format!("the connection to {to} broke: {reason}"))));
            }
            drop(place);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).chain(ReceiverStream::new(end)))))
    }
}

/// Carries bytes until the vendor has said its last, or something breaks.
async fn carry(
    stream: TcpStream,
    incoming: Streaming<v1::RelayUp>,
    pieces: &mpsc::Sender<Result<v1::RelayDown, Status>>,
    silence: Duration,
) -> Result<(), String> {
    let (reader, writer) = stream.into_split();
    let (moved, mut seen) = watch::channel(());
    let up = upwards(incoming, writer, &moved);
    let down = downwards(reader, pieces, &moved);
    let silent = async {
        // Neither half ends without ending all of this.
        while timeout(silence, seen.changed()).await.is_ok() {}
        format!("nothing passed for {} seconds", silence.as_secs())
    };
    tokio::pin!(down);
    tokio::select! {
        ended = &mut down => return ended,
        // What the worker has to say is said: the vendor's answer is still to come.
        ended = up => ended?,
        reason = silent => return Err(reason),
        () = pieces.closed() => return Err("the worker is gone".to_owned()),
    }
    tokio::select! {
        ended = &mut down => ended,
        () = tokio::time::sleep(silence) => Err(format!("no end of it within {} seconds", silence.as_secs())),
        () = pieces.closed() => Err("the worker is gone".to_owned()),
    }
}

/// From the worker to the vendor.
async fn upwards(
    mut incoming: Streaming<v1::RelayUp>,
    mut writer: OwnedWriteHalf,
    moved: &watch::Sender<()>,
) -> Result<(), String> {
    loop {
        let message = incoming.message().await.map_err(|status| status.message().to_owned())?;
        let Some(message) = message else {
            return writer.shutdown().await.map_err(|error| error.to_string());
        };
        let Some(Up::Data(data)) = message.message else { return Err("it was opened twice".to_owned()) };
        let late = |_| format!("it took nothing for {} seconds", STALLED.as_secs());
        timeout(STALLED, writer.write_all(&data)).await.map_err(late)?.map_err(|error| error.to_string())?;
        moved.send_replace(());
    }
}

/// From the vendor to the worker, whose windows say how much it takes.
async fn downwards(
    mut reader: OwnedReadHalf,
    pieces: &mpsc::Sender<Result<v1::RelayDown, Status>>,
    moved: &watch::Sender<()>,
) -> Result<(), String> {
    loop {
        let mut data = Vec::with_capacity(PIECE);
        let read = reader.read_buf(&mut data).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(());
        }
        moved.send_replace(());
        let piece = v1::RelayDown { data: data.into() };
        if pieces.send(Ok(piece)).await.is_err() {
            return Err("the worker is gone".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::endpoint::{EndpointPlan, Protocol, RateLimits};
    use longhaul_core::time::{Millis, Timestamp};
    use tokio::net::TcpListener;

    use super::*;

    fn plan(url: &str, relay: bool, call_limit: Millis) -> GatewayPlan {
        let endpoint = EndpointPlan {
            name: "vendor".to_owned(),
            protocol: Protocol::OpenAi,
            vendor: "vendor".to_owned(),
            urls: vec![url.to_owned()],
            secret: None,
            limits: RateLimits::default(),
            model_limits: Vec::new(),
            call_limit,
            retries: 0,
            relay,
            replicas_file: None,
        };
        GatewayPlan { endpoints: vec![endpoint], ..GatewayPlan::default() }
    }

    fn to(host: &str, port: u16) -> Destination {
        Destination { host: host.to_owned(), port }
    }

    #[test]
    fn a_route_lasts_as_long_as_a_run_needs_it_and_is_as_patient_as_the_most_patient_one() {
        let (one, two, three) = (RunId::new(Timestamp(1), 1), RunId::new(Timestamp(1), 2), RunId::new(Timestamp(1), 3));
        let routes = Routes::default();
        routes.learn(one, &plan("https://Vendor.example", true, Millis::from_secs(60)));
        routes.learn(two, &plan("https://vendor.example:443/v", true, Millis::from_secs(600)));
        routes.learn(three, &plan("https://other.example", false, Millis::from_secs(60)));
        let found = |host: &str, port: u16| routes.find(&to(host, port));
        assert_eq!(found("vendor.example", 443), Some(Duration::from_secs(660)));
        assert_eq!(found("vendor.example", 80), None);
        assert_eq!(found("other.example", 443), None, "it is not to be relayed");
        routes.forget(|run| run == one);
        assert_eq!(found("vendor.example", 443), Some(Duration::from_secs(120)));
        routes.forget(|_| false);
        assert_eq!(found("vendor.example", 443), None);
    }

    #[test]
    fn where_a_file_leads_is_reached_for_as_long_as_it_says_so_and_a_run_names_it() {
        let run = RunId::new(Timestamp(1), 1);
        let routes = Routes::default();
        let mut relayed = plan("", true, Millis::from_secs(60));
        relayed.endpoints[0].replicas_file = Some("/shared/addresses".to_owned());
        let mut direct = plan("", false, Millis::from_secs(600));
        direct.endpoints[0].replicas_file = Some("/shared/others".to_owned());
        routes.learn(run, &relayed);
        routes.learn(RunId::new(Timestamp(1), 2), &direct);
        let says = |file: &str, url: &str| {
            let known = replicas::Known { urls: vec![url.to_owned()], ..replicas::Known::default() };
            routes.moved(&[(file.to_owned(), known)].into());
        };
        let found = |port| routes.find(&to("node7", port));
        assert_eq!(found(8000), None, "nobody has read it yet");
        says("/shared/addresses", "http://node7:8000");
        assert_eq!(found(8000), Some(Duration::from_secs(120)));
        says("/shared/addresses", "http://node7:8001");
        assert_eq!((found(8000), found(8001)), (None, Some(Duration::from_secs(120))));
        says("/shared/others", "http://node7:8001");
        assert_eq!(found(8001), None, "that one is not relayed");
        says("/shared/addresses", "http://node7:8001");
        routes.forget(|_| false);
        assert_eq!(found(8001), None);
    }

    #[tokio::test]
    async fn there_are_no_more_connections_than_places() {
        let vendor = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = vendor.local_addr().expect("an address");
        let routes = Routes::default();
        routes.learn(RunId::new(Timestamp(1), 1), &plan(&format!("http://{address}"), true, Millis::from_secs(60)));
        let relays = Relays::with_most(1, routes, CancellationToken::new(), TaskTracker::new());
        let there = to("127.0.0.1", address.port());
        let first = relays.connect(&there).await.expect("a connection");
        let refused = relays.connect(&there).await.expect_err("there is one place");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(first);
        drop(relays.connect(&there).await.expect("the place is free again"));
    }
}
