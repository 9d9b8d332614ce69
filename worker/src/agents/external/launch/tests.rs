//! What a program finds in its environment; programs themselves are in [`crate::agents::tests`].

use longhaul_core::time::Millis;

use super::*;
use crate::testing::plans;

fn endpoint(name: &str, protocol: Protocol) -> EndpointPlan {
    EndpointPlan {
        urls: vec!["https://api.vendor.test".to_owned()],
        secret: Some("THE_KEY".to_owned()),
        ..plans::endpoint(name, protocol)
    }
}

fn agent() -> ExternalAgent {
    ExternalAgent {
        command: vec!["x".to_owned()],
        files: None,
        image: None,
        variables: BTreeMap::from([("OPENAI_BASE_URL".to_owned(), "own".to_owned())]),
        endpoints: Vec::new(),
        answer_limit: Millis(1),
        memory_mib: 100,
        net: false,
    }
}

#[test]
fn endpoints_are_found_where_the_vendors_sdks_look() {
    let endpoints =
        [endpoint("a", Protocol::Anthropic), endpoint("g", Protocol::Gemini), endpoint("a2", Protocol::Anthropic)];
    let env = environment(&agent(), &endpoints, "lh-1", &BTreeMap::new());
    let found = |name: &str| env.get(name).map(String::as_str);
    assert_eq!(found("ANTHROPIC_BASE_URL"), Some("http://127.0.0.1:8377/a"));
    assert_eq!(found("GOOGLE_GEMINI_BASE_URL"), Some("http://127.0.0.1:8377/g"));
    assert_eq!((found("ANTHROPIC_API_KEY"), found("GEMINI_API_KEY")), (Some("lh-1"), Some("lh-1")));
    assert_eq!(found("OPENAI_BASE_URL"), Some("own"), "what the agent says itself wins");
    let all = format!("{env:?} {:?}", told_endpoints(&endpoints));
    assert!(!all.contains("THE_KEY") && !all.contains("vendor.test"), "{all}");
    assert_eq!(told_endpoints(&[endpoint("o", Protocol::OpenAi)])["o"]["base_url"], "http://127.0.0.1:8377/o/v1");
    let none = environment(&agent(), &[], "lh-1", &BTreeMap::new());
    assert!(none.values().all(|value| value != "lh-1"), "nothing to call, no key");
}

#[test]
fn a_proxy_is_told_to_whoever_has_a_network_and_stands_before_no_gateway() {
    let network = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", ".cluster")];
    let network = network.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let env = environment(&agent(), &[], "", &network);
    assert!(!env.contains_key("HTTPS_PROXY") && !env.contains_key("NO_PROXY"), "{env:?}");
    let env = environment(&ExternalAgent { net: true, ..agent() }, &[], "", &network);
    assert_eq!(env["HTTPS_PROXY"], "http://proxy:3128");
    let direct = ".cluster,127.0.0.1,localhost";
    assert_eq!((&*env["NO_PROXY"], &*env["no_proxy"]), (direct, direct), "one stands for both");
    let bare = environment(&ExternalAgent { net: true, ..agent() }, &[], "", &BTreeMap::new());
    assert_eq!((&*bare["NO_PROXY"], &*bare["no_proxy"]), ("127.0.0.1,localhost", "127.0.0.1,localhost"));
}
