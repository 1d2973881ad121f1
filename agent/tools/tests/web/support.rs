//! Servers that answer as a test says, a resolver that answers as a test says, and a call of the tool between them.

use ringfence_base::error::chain;
use ringfence_grant::{
    Grant, Scope,
    gate::{Decision, Gate, NoPrograms, Outcome, Registry},
};
use ringfence_tools::web::{
    WebFetch,
    resolve::{Lookup, Resolve},
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

pub(crate) use ringfence_test_support::web::{Server, ok, redirect};

/// Long enough for anything that should work on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Names and what each look-up of them finds in turn; the last answer stays.
#[derive(Clone, Default)]
pub(crate) struct Names(Arc<Mutex<HashMap<String, Vec<Vec<IpAddr>>>>>, Arc<Mutex<Vec<String>>>);

impl Names {
    #[must_use]
    pub(crate) fn with(self, name: &str, answers: &[&[&str]]) -> Self {
        let answers = answers.iter().map(|addrs| addrs.iter().map(|addr| addr.parse().unwrap()).collect());
        self.0.lock().unwrap().insert(name.to_owned(), answers.collect());
        self
    }

    /// Every name that was looked up.
    pub(crate) fn looked_up(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Lookup<'a> {
        self.1.lock().unwrap().push(name.to_owned());
        let mut names = self.0.lock().unwrap();
        let found = match names.get_mut(name) {
            None => Err(std::io::Error::other("no such name")),
            Some(answers) if answers.len() > 1 => Ok(answers.remove(0)),
            Some(answers) => Ok(answers.first().cloned().unwrap_or_default()),
        };
        Box::pin(std::future::ready(found))
    }
}

/// A session with `web_fetch`, and what was decided in it.
pub(crate) struct Session {
    registry: Registry,
    grant: Grant,
    denials: Arc<Mutex<Vec<String>>>,
}

impl Session {
    /// With these net entries granted, or `all`, and nothing else.
    pub(crate) fn new(net: &[&str], tool: WebFetch) -> Self {
        let net = match net {
            ["all"] => Scope::All,
            _ => Scope::only(net.iter().map(|entry| entry.parse().unwrap())),
        };
        let top = Grant::top();
        let grant = Grant {
            net,
            max_calls: top.max_calls,
            valid_for_generation: top.valid_for_generation,
            ..Grant::bottom()
        };
        let denials = Arc::new(Mutex::new(Vec::new()));
        let heard = denials.clone();
        let gate = Gate::new(NoPrograms).with_record(move |decision: &Decision<'_>| {
            if let Outcome::Denied(denied) = decision.outcome {
                heard.lock().unwrap().push(denied.to_string());
            }
        });
        Self { registry: Registry::new(gate).with(tool), grant, denials }
    }

    pub(crate) fn call(&self, args: Value) -> Result<Value, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let call = self.registry.dispatch("web_fetch", args, &self.grant);
        runtime.block_on(call).map_err(|error| chain(&error))
    }

    /// Every denial that was recorded.
    pub(crate) fn denials(&self) -> Vec<String> {
        self.denials.lock().unwrap().clone()
    }
}

/// One call in a session of its own, with no names but those.
pub(crate) fn fetch_named(net: &[&str], names: &Names, url: &str) -> Result<Value, String> {
    Session::new(net, WebFetch::default().with_resolver(names.clone()).with_timeout(PATIENCE))
        .call(json!({ "url": url }))
}

/// One call in a session of its own, with no names.
pub(crate) fn fetch(net: &[&str], url: &str) -> Result<Value, String> {
    fetch_named(net, &Names::default(), url)
}

/// That a call was denied: the reason, which says all of `said`.
#[track_caller]
pub(crate) fn assert_denied(result: Result<Value, String>, said: &[&str]) {
    let error = result.expect_err("it was not denied");
    assert!(error.starts_with("denied: "), "{error}");
    for said in said {
        assert!(error.contains(said), "{error}: no {said:?}");
    }
}
