//! The models of a run: which endpoints and prices its workers need, what its budgets are, and
//! whether a single call fits into them.

use std::collections::BTreeMap;
use std::convert::identity;

use longhaul_core::agent::AuditPlan;
use longhaul_core::budget::{RunBudgets, StallPolicy};
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::judge::{JudgePlan, Verify};
use longhaul_core::money::Money;
use longhaul_core::plan::Until;
use longhaul_core::price::{ModelPrice, Service};

use super::agents::{Agent, AgentError, no_endpoint};
use super::limits::Limits;
use crate::nearest;
use crate::prices::PriceTable;
use crate::settings::EndpointSettings;

/// The least input of a call of an agent, beside its screenshot: some words about the task.
const LEAST_INPUT: u64 = 200;

/// The least output that a call may be shortened to.
const LEAST_OUTPUT: u64 = 16;

/// The size of a small screen: no agent is sent less, unless it asks for it.
const SMALL_SCREEN: (u32, u32) = (800, 600);

/// What a run says of models, ready to be frozen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelTerms {
    /// Caps over more than one episode.
    pub budgets: RunBudgets,
    /// The endpoints and prices that workers need; none if nothing calls a model.
    pub gateway: Option<GatewayPlan>,
    /// Who looks when an agent says that it is done.
    pub audit: Option<AuditPlan>,
    /// What is done about steps without effect.
    pub stall: StallPolicy,
    /// Which verifier decides.
    pub verify: Verify,
    /// Who judges, and answers verifiers that ask a model.
    pub judge: Option<JudgePlan>,
    /// When samples of a task are enough.
    pub until: Option<Until>,
}

/// Caps as a person says them; agents by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Of all episodes of the run.
    pub run: Option<Money>,
    /// Of all episodes of each agent.
    pub each_agent: Option<Money>,
    /// Of all episodes of one agent; none lifts what is said for each.
    pub agents: BTreeMap<String, Option<Money>>,
    /// Of the judge.
    pub judge: Option<Money>,
}

impl Caps {
    /// The caps by the index of agents.
    ///
    /// # Errors
    ///
    /// A name is no agent's.
    pub fn of(&self, agents: &[Agent]) -> Result<RunBudgets, ModelError> {
        if let Some(name) = self.agents.keys().find(|name| agents.iter().all(|agent| agent.name() != name.as_str())) {
            let names: Vec<&str> = agents.iter().map(Agent::name).collect();
            return Err(ModelError::NoAgent { name: name.clone(), hint: nearest::hint(name, &names, identity) });
        }
        let of = |agent: &Agent| self.agents.get(agent.name()).copied().unwrap_or(self.each_agent);
        let mut caps: Vec<Option<Money>> = agents.iter().map(of).collect();
        if caps.iter().all(Option::is_none) {
            caps.clear();
        }
        Ok(RunBudgets { run: self.run, agents: caps, judge: self.judge })
    }
}

/// A run whose models cannot be paid for or reached as it asks.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A cap for nobody.
    #[error("a budget is set for the agent `{name}`, and no agent of the run is called that: {hint}")]
    NoAgent {
        /// The name.
        name: String,
        /// What was probably meant, or what there is.
        hint: String,
    },
    /// Nothing says what a model costs, and a cap would not hold.
    #[error("{budget} is capped, and {user} calls `{vendor}:{model}`, which has no price{hint}")]
    NoPrice {
        /// The capped budget.
        budget: String,
        /// Who calls it.
        user: String,
        /// The vendor.
        vendor: String,
        /// The model.
        model: String,
        /// The nearest names.
        hint: String,
    },
    /// Not even one call fits.
    #[error(
        "{budget}, {cap}, is below the {bound} that one call of {user} may cost ({input} tokens of input and {output} of output at most)"
    )]
    BelowOneCall {
        /// The capped budget.
        budget: String,
        /// The cap.
        cap: Money,
        /// Who calls.
        user: String,
        /// The bound of the smallest call.
        bound: Money,
        /// Its input.
        input: u64,
        /// Its output.
        output: u64,
    },
    /// An endpoint is not there.
    #[error(transparent)]
    Endpoint(#[from] AgentError),
}

/// Who calls a model.
struct User<'a> {
    who: String,
    endpoint: &'a str,
    /// The model and the most output of one call; unknown for a program of somebody else's.
    call: Option<(&'a str, u64)>,
    screenshot: (u32, u32),
    /// The tier of service that it asks for.
    service: Option<Service>,
    payer: Payer,
}

/// Whose money pays a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    /// The episodes of an agent.
    Agent(u32),
    /// Any agent's.
    Episodes,
    /// Nobody's but the judge's own.
    Judging,
}

/// Whether anything of a run calls a model, and so needs a price.
#[must_use]
pub fn calls_models(agents: &[Agent], terms: &ModelTerms) -> bool {
    !users(agents, terms).is_empty()
}

/// The endpoints and prices that workers need, if anything calls a model, with what a person
/// should know.
///
/// # Errors
///
/// An endpoint is not there, a capped model has no price, or a cap is below one call.
pub fn gateway(
    agents: &[Agent],
    terms: &ModelTerms,
    limits: &Limits,
    endpoints: &BTreeMap<String, EndpointSettings>,
    prices: &PriceTable,
    shorten: bool,
) -> Result<(Option<GatewayPlan>, Vec<String>), ModelError> {
    let users = users(agents, terms);
    if users.is_empty() {
        return Ok((None, Vec::new()));
    }
    let mut plan = GatewayPlan { prices_of: prices.date().to_owned(), shorten, ..GatewayPlan::default() };
    let mut warnings = Vec::new();
    for user in &users {
        let settings = endpoints.get(user.endpoint).ok_or_else(|| no_endpoint(&user.who, user.endpoint, endpoints))?;
        if plan.endpoint(user.endpoint).is_none() {
            plan.endpoints.push(settings.plan(user.endpoint));
        }
        let vendor = settings.vendor(user.endpoint);
        let caps = caps(user, agents, terms, limits);
        let Some((model, output)) = user.call else {
            // What it will ask for is not known: the gateway refuses what has no price.
            for row in prices.of_vendor(vendor) {
                keep(&mut plan.prices, row.price.clone());
            }
            continue;
        };
        match prices.find(vendor, model) {
            Some(row) => {
                fits(user, &row.price, output, settings, &caps, shorten)?;
                keep(&mut plan.prices, row.price.clone());
            }
            None => {
                if let Some(budget) = caps.first().map(|(budget, _)| budget.clone()).or_else(|| any_cap(terms, limits))
                {
                    return Err(ModelError::NoPrice {
                        budget,
                        user: user.who.clone(),
                        vendor: vendor.to_owned(),
                        model: model.to_owned(),
                        hint: nearest_names(prices, vendor, model),
                    });
                }
                warnings.push(format!(
                    "{} calls `{vendor}:{model}`, which has no price: what it spends will not be counted",
                    user.who
                ));
            }
        }
    }
    plan.endpoints.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((Some(plan), warnings))
}

fn keep(rows: &mut Vec<ModelPrice>, row: ModelPrice) {
    if !rows.contains(&row) {
        rows.push(row);
    }
}

fn users<'a>(agents: &'a [Agent], terms: &'a ModelTerms) -> Vec<User<'a>> {
    let mut users = Vec::new();
    for (index, agent) in (0_u32..).zip(agents) {
        let who = format!("the agent `{}`", agent.name());
        match agent {
            Agent::Idle | Agent::Scripted { .. } => {}
            Agent::Model { agent, .. } => {
                let size = agent.image.map_or(SMALL_SCREEN, |size| (u32::from(size.width), u32::from(size.height)));
                let screenshot = (size.0.min(SMALL_SCREEN.0), size.1.min(SMALL_SCREEN.1));
                let call = Some((agent.model.as_str(), u64::from(agent.max_output)));
                let (service, payer) = (agent.service(), Payer::Agent(index));
                users.push(User { who, endpoint: &agent.endpoint, call, screenshot, service, payer });
            }
            Agent::External { external, .. } => {
                for endpoint in &external.endpoints {
                    let models = external.models.iter().filter(|(of, _)| of == endpoint);
                    let known: Vec<&str> = models.map(|(_, model)| model.as_str()).collect();
                    let payer = Payer::Agent(index);
                    let user =
                        |call| User { who: who.clone(), endpoint, call, screenshot: (0, 0), service: None, payer };
                    users.extend(known.iter().map(|model| user(Some((*model, LEAST_OUTPUT)))));
                    // It may ask for others as well.
                    users.push(user(None));
                }
            }
        }
    }
    if let Some(audit) = &terms.audit {
        let call = Some((audit.model.as_str(), u64::from(audit.max_output)));
        let who = "the audit".to_owned();
        let payer = Payer::Episodes;
        users.push(User { who, endpoint: &audit.endpoint, call, screenshot: SMALL_SCREEN, service: None, payer });
    }
    if let Some(judge) = &terms.judge {
        let call = Some((judge.model.as_str(), u64::from(judge.max_output)));
        let who = "the judge".to_owned();
        let payer = Payer::Judging;
        users.push(User { who, endpoint: &judge.endpoint, call, screenshot: SMALL_SCREEN, service: None, payer });
    }
    users
}

/// The caps that hold for a user's calls, the narrowest scope first.
fn caps(user: &User<'_>, agents: &[Agent], terms: &ModelTerms, limits: &Limits) -> Vec<(String, Money)> {
    let mut caps = Vec::new();
    if user.payer == Payer::Judging {
        caps.extend(terms.budgets.judge.map(|cap| ("the budget of the judge".to_owned(), cap)));
        return caps;
    }
    if let Some(cap) = limits.cost {
        caps.push(("the budget of an episode".to_owned(), cap));
    }
    for (index, agent) in (0_u32..).zip(agents) {
        // An audit is paid by whichever agent's episode it is of.
        if let Some(cap) =
            terms.budgets.agent(index).filter(|_| !matches!(user.payer, Payer::Agent(agent) if agent != index))
        {
            caps.push((format!("the budget of the agent `{}`", agent.name()), cap));
        }
    }
    if let Some(cap) = terms.budgets.run {
        caps.push(("the budget of the run".to_owned(), cap));
    }
    caps
}

/// A cap of the run, if it has one: where there is any, workers refuse every call that has no
/// price, whoever pays it.
fn any_cap(terms: &ModelTerms, limits: &Limits) -> Option<String> {
    let budgets = &terms.budgets;
    let agent = budgets.agents.iter().any(Option::is_some).then_some("the budget of an agent");
    let cap = limits.cost.map(|_| "the budget of an episode").or(agent);
    let cap = cap.or_else(|| budgets.run.map(|_| "the budget of the run"));
    cap.or_else(|| budgets.judge.map(|_| "the budget of the judge")).map(str::to_owned)
}

/// Whether the smallest call of a user fits into every cap that holds for it.
fn fits(
    user: &User<'_>,
    price: &ModelPrice,
    output: u64,
    settings: &EndpointSettings,
    caps: &[(String, Money)],
    shorten: bool,
) -> Result<(), ModelError> {
    let picture = if user.screenshot == (0, 0) { 0 } else { price.image.bound(Some(user.screenshot)) };
    let input = LEAST_INPUT.saturating_add(picture);
    let output = if shorten { output.min(LEAST_OUTPUT) } else { output };
    let service = user.service.filter(|service| price.serves(*service));
    let bound = price.bound_as(service, input, output, settings.call_limit);
    match caps.iter().find(|(_, cap)| *cap < bound) {
        Some((budget, cap)) => Err(ModelError::BelowOneCall {
            budget: budget.clone(),
            cap: *cap,
            user: user.who.clone(),
            bound,
            input,
            output,
        }),
        None => Ok(()),
    }
}

fn nearest_names(prices: &PriceTable, vendor: &str, model: &str) -> String {
    let near = prices.nearest(vendor, model);
    if near.is_empty() {
        return "; `longhaul prices` lists those that have one, and `--prices FILE` adds others".to_owned();
    }
    let names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
    format!("; the nearest that have one: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::agents::AskedAgent;
    use super::*;

    struct Asked {
        limits: Limits,
        terms: ModelTerms,
        shorten: bool,
    }

    fn asked() -> Asked {
        Asked { limits: Limits::default(), terms: ModelTerms::default(), shorten: false }
    }

    fn plan(agents: &[&str], asked: &Asked) -> Result<(Option<GatewayPlan>, Vec<String>), ModelError> {
        let settings = "[endpoint.my-vllm]\nprotocol = 'openai'\nurls = ['http://node7:8000']\n";
        let endpoints = crate::settings::parse(settings, Path::new("s.toml")).unwrap().endpoint;
        let agents: Vec<AskedAgent> = agents.iter().map(|text| AskedAgent::of(text)).collect();
        let agents = Agent::read_all(&agents, &endpoints).unwrap();
        let prices = PriceTable::load(None).unwrap();
        gateway(&agents, &asked.terms, &asked.limits, &endpoints, &prices, asked.shorten)
    }

    fn capped(cost: &str) -> Asked {
        Asked { limits: Limits { cost: Some(cost.parse().unwrap()), ..Limits::default() }, ..asked() }
    }

    #[test]
    fn a_run_gets_the_endpoints_and_prices_that_it_needs_and_no_others() {
        let (plan_, warnings) = plan(&["idle", "anthropic:claude-sonnet-4-6"], &capped("5")).unwrap();
        let plan_ = plan_.unwrap();
        assert_eq!((plan_.endpoints.len(), plan_.prices.len(), warnings), (1, 1, Vec::new()));
        assert!(plan_.price("anthropic", "claude-sonnet-4-6").is_some());
        assert_eq!(plan(&["idle"], &capped("5")).unwrap().0, None, "nothing calls a model");
    }

    #[test]
    fn a_model_without_a_price_is_refused_where_dollars_are_capped_and_else_warned_of() {
        let error = plan(&["anthropic:claude-sonet-4-6"], &capped("5")).unwrap_err().to_string();
        assert!(error.contains("the budget of an episode is capped"), "{error}");
        assert!(error.contains("`anthropic:claude-sonnet-4-6`"), "{error}");
        let (_, warnings) = plan(&["my-vllm:Qwen/Qwen3-VL-4B"], &asked()).unwrap();
        assert!(warnings[0].contains("will not be counted"), "{warnings:?}");
        let mut run = asked();
        run.terms.budgets.run = Some(Money::from_dollars(9));
        let error = plan(&["my-vllm:Qwen/Qwen3-VL-4B"], &run).unwrap_err().to_string();
        assert!(error.contains("the budget of the run is capped") && error.contains("`--prices FILE`"), "{error}");
    }

    #[test]
    fn a_cap_below_one_call_says_which() {
        let agents = ["anthropic:claude-sonnet-4-6?max_output=4096"];
        for cost in ["0", "0.01", "0.06"] {
            let error = plan(&agents, &capped(cost)).unwrap_err().to_string();
            assert!(error.starts_with("the budget of an episode, $0.0"), "{error}");
            assert!(error.contains("the agent `claude-sonnet-4-6`") && error.contains("4096 of output"), "{error}");
        }
        plan(&agents, &capped("0.10")).unwrap();
        // An answer that may be shortened fits into less.
        plan(&agents, &Asked { shorten: true, ..capped("0.06") }).unwrap();
        let mut agent = asked();
        agent.terms.budgets.agents = vec![Some(Money::ZERO)];
        let error = plan(&agents, &agent).unwrap_err().to_string();
        assert!(error.starts_with("the budget of the agent `claude-sonnet-4-6`, $0.00"), "{error}");
        plan(&["idle"], &capped("0")).unwrap();
        // A dearer tier of service is counted as what it is.
        plan(&["openai:gpt-5.4?max_output=4096"], &capped("0.10")).unwrap();
        let error =
            plan(&["openai:gpt-5.4?max_output=4096&parameters.service_tier=priority"], &capped("0.10")).unwrap_err();
        assert!(error.to_string().starts_with("the budget of an episode, $0.10"), "{error}");
    }

    #[test]
    fn an_audit_needs_a_price_as_well() {
        let mut run = capped("5");
        run.terms.audit = Some(AuditPlan {
            endpoint: "gemini".to_owned(),
            model: "gemini-9".to_owned(),
            most: 2,
            max_output: 2048,
            images: 20,
        });
        let error = plan(&["idle"], &run).unwrap_err().to_string();
        assert!(error.contains("the audit calls `gemini:gemini-9`"), "{error}");
    }

    #[test]
    fn a_judge_is_paid_apart_and_needs_a_price_where_anything_is_capped() {
        let judging = |model: &str, mut asked: Asked| {
            asked.terms.judge = Some(JudgePlan::published("gemini".to_owned(), model.to_owned()));
            plan(&["idle"], &asked)
        };
        let (plan_, _) = judging("gemini-3-flash-preview", capped("0")).unwrap();
        assert_eq!(plan_.unwrap().endpoints.len(), 1, "an episode's cap is none of the judge's");
        let error = judging("gemini-9", capped("5")).unwrap_err().to_string();
        assert!(error.contains("the budget of an episode is capped, and the judge calls `gemini:gemini-9`"), "{error}");
        assert!(judging("gemini-9", asked()).unwrap().1[0].contains("will not be counted"));
        let mut poor = asked();
        poor.terms.budgets.judge = Some(Money::ZERO);
        let error = judging("gemini-3-flash-preview", poor).unwrap_err().to_string();
        assert!(error.starts_with("the budget of the judge, $0.00"), "{error}");
    }

    #[test]
    fn caps_of_agents_are_by_name() {
        let endpoints = crate::settings::parse("", Path::new("s.toml")).unwrap().endpoint;
        let asked = [AskedAgent::of("a=anthropic:claude-haiku-4-5"), AskedAgent::of("b=openai:gpt-5.4")];
        let agents = Agent::read_all(&asked, &endpoints).unwrap();
        let five = Some(Money::from_dollars(5));
        let mut caps = Caps { each_agent: five, ..Caps::default() };
        assert_eq!(caps.of(&agents).unwrap().agents, [five, five]);
        caps.agents.insert("b".to_owned(), None);
        assert_eq!(caps.of(&agents).unwrap().agents, [five, None]);
        caps.agents.insert("bb".to_owned(), five);
        let error = caps.of(&agents).unwrap_err().to_string();
        assert!(error.contains("`bb`") && error.contains("did you mean `b`?"), "{error}");
        assert!(Caps::default().of(&agents).unwrap().is_default());
    }
}
