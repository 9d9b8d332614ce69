//! The way in: the vendors' HTTP protocols for programs that know nothing of us, on a socket of
//! the attempt's own.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request as HttpRequest, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use longhaul_core::call::Purpose;
use longhaul_core::endpoint::{EndpointPlan, Protocol};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::body::{AnswerBody, Chunks, Coming, LongComing, whole};
use super::headers::shown_token;
use crate::account::{Failure, Inner, Reply, Request, Said};
use crate::aside::aside;
use crate::call::CallError;
use crate::config::GatewayError;
use crate::json::parse;
use crate::protocol::ErrorKind;
use crate::protocol::route::{self, CallRoute, Route};

/// How long a client may take for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(60);

/// How long a client that is refused may take to send the rest of its request.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The largest head of a request.
const LARGEST_HEAD: usize = 64 << 10;

/// So many connections of one attempt are served at once.
const MOST_CONNECTIONS: usize = 256;

type Answer = Response<AnswerBody>;

/// Serves an account on a socket until it is closed.
pub(crate) async fn listen(inner: &Arc<Inner>, socket: &Path) -> Result<(), GatewayError> {
    let failed = |source| GatewayError::Listen { path: socket.display().to_string(), source };
    let listener = UnixListener::bind(socket).map_err(failed)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = inner.closing() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                let (stream, _) = accepted.map_err(failed)?;
                connections.spawn(serve(Arc::clone(inner), stream));
            }
        }
    }
    // What is being answered is answered; a connection ends by itself then.
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve(inner: Arc<Inner>, stream: UnixStream) {
    let service = {
        let inner = Arc::clone(&inner);
        service_fn(move |request| {
            let inner = Arc::clone(&inner);
            async move { Ok::<_, Infallible>(answer(&inner, request).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = inner.closing() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients hang up as they like.
        tracing::debug!(%error, "a connection to the gateway ended");
    }
}

/// Why a request is not answered, in the form of a protocol.
struct Refusal(Protocol, ErrorKind, String);

/// Answers one request.
async fn answer(inner: &Arc<Inner>, request: HttpRequest<Incoming>) -> Answer {
    match admit(inner, &request) {
        Ok((plan, Route::Call(call))) => match read_call(inner, plan, call, request).await {
            Ok((request, value)) => called(inner, plan.protocol, request, value).await,
            Err((kind, message)) => error(plan.protocol, kind, &message),
        },
        Ok((plan, Route::Models(name))) => models(inner, plan, name.as_deref()),
        Err(Refusal(protocol, kind, message)) => {
            drain(request.into_body(), inner.shared.config.max_request).await;
            error(protocol, kind, &message)
        }
    }
}

/// Whom a request is for and what it asks for, by its head alone.
fn admit<'a>(inner: &'a Inner, request: &HttpRequest<Incoming>) -> Result<(&'a EndpointPlan, Route), Refusal> {
    let path = request.uri().path();
    let (name, rest) = path.trim_start_matches('/').split_once('/').map_or((path, ""), |(name, _)| {
        (name, &path[path.len() - (path.trim_start_matches('/').len() - name.len())..])
    });
    let allowed = inner.allowed.iter().any(|allowed| allowed == name);
    let Some(plan) = inner.endpoint(name).filter(|_| allowed) else {
        let message = format!("no such endpoint; this attempt may call: {}", inner.allowed.join(", "));
        return Err(Refusal(Protocol::OpenAi, ErrorKind::NotFound, message));
    };
    let refuse = |kind, message: &str| Err(Refusal(plan.protocol, kind, message.to_owned()));
    let query = request.uri().query().unwrap_or_default();
    if !shown_token(request.headers(), query).is_some_and(|token| inner.is_token(token)) {
        return if inner.is_open() {
            refuse(ErrorKind::Unauthorized, "the key is not the token of a live attempt")
        } else {
            refuse(ErrorKind::Closed, "the attempt is over: no further call is made")
        };
    }
    let post = match *request.method() {
        Method::POST => true,
        Method::GET => false,
        _ => return refuse(ErrorKind::NotFound, "only POST and GET are known here"),
    };
    match route::read(plan.protocol, post, rest) {
        Some(route) => Ok((plan, route)),
        None => refuse(ErrorKind::NotFound, &format!("the gateway does not pass on {rest}")),
    }
}

/// Hears a client out that is refused, within limits: one that still sends when its connection
/// is closed sees that, and not the answer.
async fn drain(body: Incoming, most: usize) {
    let mut body = Limited::new(body, most);
    let heard = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_LIMIT, heard).await;
}

/// Reads a call; what it is, and its body as it was read.
async fn read_call(
    inner: &Arc<Inner>,
    plan: &EndpointPlan,
    route: CallRoute,
    request: HttpRequest<Incoming>,
) -> Result<(Request, Value), (ErrorKind, String)> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (parts, mut body) = request.into_parts();
    let most = inner.shared.config.max_request;
    let body = match Limited::new(&mut body, most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            drain(body, most).await;
            return Err((ErrorKind::TooLarge, format!("a request may have {most} bytes")));
        }
        Err(error) => return Err((ErrorKind::Invalid, format!("the request broke off: {error}"))),
    };
    let invalid = |message: String| (ErrorKind::Invalid, message);
    if parts.headers.contains_key(header::CONTENT_ENCODING) {
        return Err(invalid("a request in a content encoding is not read here".to_owned()));
    }
    let read = {
        let body = body.clone();
        aside(body.len(), move || parse(&body)).await
    };
    let value = read.map_err(|error| invalid(format!("the body is no JSON that can be read: {error}")))?;
    let model = match &route.model {
        Some(model) => model.clone(),
        None => value["model"].as_str().ok_or_else(|| invalid("`model` is missing".to_owned()))?.to_owned(),
    };
    let stream = match (route.stream, value.get("stream")) {
        (Some(stream), _) => stream,
        (None, None | Some(Value::Null)) => false,
        (None, Some(Value::Bool(stream))) => *stream,
        (None, Some(_)) => return Err(invalid("`stream` is true or false".to_owned())),
    };
    let request = Request {
        endpoint: inner.shared.endpoint(plan),
        plan: plan.clone(),
        query: route::query(&query, stream, route.surface),
        route,
        stream,
        model,
        purpose: Purpose::Agent,
        body,
        headers: parts.headers,
    };
    Ok((request, value))
}

/// Makes a call. A client whose answer is long in coming, since money, a share or an endpoint that is
/// down is waited for, gets its head and then a blank line now and then: it would give up after ten
/// minutes, as vendors' SDKs do, and its attempt with it. What fails then breaks off.
async fn called(inner: &Arc<Inner>, protocol: Protocol, request: Request, value: Value) -> Answer {
    let (stream, quiet) = (request.stream, inner.shared.config.quiet);
    let inner = Arc::clone(inner);
    let mut call: Coming = Box::pin(async move { inner.start(request, value).await });
    if let Ok(ended) = tokio::time::timeout(quiet, call.as_mut()).await {
        return pass(protocol, ended);
    }
    let mut answer = Response::new(LongComing::new(call, quiet).boxed_unsync());
    let kind = if stream { "text/event-stream" } else { "application/json" };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Passes an answer on, or says why there is none.
fn pass(protocol: Protocol, ended: Result<Reply, Failure>) -> Answer {
    match ended {
        Ok(reply) => {
            let mut answer = Response::new(Chunks::new(reply.chunks).boxed_unsync());
            *answer.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
            *answer.headers_mut() = reply.headers;
            if let Some(shortened) = reply.shortened_to {
                answer.headers_mut().insert("x-longhaul-shortened-to", HeaderValue::from(shortened));
            }
            answer
        }
        // The last words of the vendor, whose SDK knows them; it was tried again here already.
        Err(Failure { said: Some(said), .. }) => {
            let Said { status, headers, body } = *said;
            let mut answer = Response::new(whole(body));
            *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
            *answer.headers_mut() = headers;
            no_retry(&mut answer);
            answer
        }
        Err(Failure { error: failure, .. }) => error(protocol, kind(&failure), &failure.to_string()),
    }
}

const fn kind(error: &CallError) -> ErrorKind {
    match error {
        CallError::Budget { .. } | CallError::Round { .. } | CallError::Tokens { .. } => ErrorKind::Spent,
        CallError::Endpoint { .. } => ErrorKind::Unavailable,
        CallError::Rejected { .. } | CallError::Unbounded { .. } => ErrorKind::Invalid,
        CallError::Journal(_) | CallError::NotRecorded { .. } => ErrorKind::Internal,
        CallError::Closed => ErrorKind::Closed,
    }
}

fn error(protocol: Protocol, kind: ErrorKind, message: &str) -> Answer {
    let mut answer = Response::new(whole(Bytes::from(kind.body(protocol, message).to_string())));
    *answer.status_mut() = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    no_retry(&mut answer);
    answer
}

/// Whoever tries again by itself is asked not to: that was done here.
fn no_retry(answer: &mut Answer) {
    answer.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
    answer.headers_mut().remove(header::RETRY_AFTER);
}

/// The models that an endpoint has a price for, in the form of its protocol.
fn models(inner: &Inner, plan: &EndpointPlan, name: Option<&str>) -> Answer {
    let prices = inner.plan.prices.iter().filter(|price| price.vendor == plan.vendor);
    let mut names: Vec<_> = prices.map(|price| price.model.trim_end_matches('*')).collect();
    names.dedup();
    let one = |name: &str| match plan.protocol {
        Protocol::OpenAi => json!({ "id": name, "object": "model", "created": 0, "owned_by": plan.vendor }),
        Protocol::Anthropic => {
            json!({ "id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z" })
        }
        Protocol::Gemini => json!({ "name": format!("models/{name}"), "displayName": name,
            "supportedGenerationMethods": ["generateContent"] }),
    };
    if let Some(name) = name {
        if inner.plan.price(&plan.vendor, name).is_none() {
            return error(plan.protocol, ErrorKind::NotFound, "the run has no such model");
        }
        return ok(&one(name));
    }
    let list: Vec<_> = names.into_iter().map(one).collect();
    ok(&match plan.protocol {
        Protocol::OpenAi => json!({ "object": "list", "data": list }),
        Protocol::Anthropic => json!({ "data": list, "has_more": false, "first_id": null, "last_id": null }),
        Protocol::Gemini => json!({ "models": list }),
    })
}

fn ok(value: &Value) -> Answer {
    let mut answer = Response::new(whole(Bytes::from(value.to_string())));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
