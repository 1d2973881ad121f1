//! The page's files, built in.

use super::rule_form;
use axum::{
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};

const JS: &str = "text/javascript; charset=utf-8";

const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/app.js", JS, include_str!("page/app.js")),
    ("/api.js", JS, include_str!("page/api.js")),
    ("/place.js", JS, include_str!("page/place.js")),
    ("/dom.js", JS, include_str!("page/dom.js")),
    ("/calls.js", JS, include_str!("page/calls.js")),
    ("/detail.js", JS, include_str!("page/detail.js")),
    ("/waiting.js", JS, include_str!("page/waiting.js")),
    ("/intents.js", JS, include_str!("page/intents.js")),
    ("/inventory.js", JS, include_str!("page/inventory.js")),
    ("/sessions.js", JS, include_str!("page/sessions.js")),
    ("/rules.js", JS, include_str!("page/rules.js")),
    ("/standing.js", JS, include_str!("page/standing.js")),
    ("/exceptions.js", JS, include_str!("page/exceptions.js")),
];

/// The module that is made from what the dashboard knows of rules.
const CONDITIONS: &str = "/conditions.js";

/// The file of a path.
pub(super) fn find(path: &str) -> Option<Response> {
    if path == CONDITIONS {
        return Some((StatusCode::OK, [(CONTENT_TYPE, JS)], rule_form::page_module()).into_response());
    }
    let (_, kind, text) = FILES.iter().find(|(name, ..)| *name == path)?;
    Some((StatusCode::OK, [(CONTENT_TYPE, *kind)], *text).into_response())
}

#[cfg(test)]
mod tests {
    use super::{FILES, find};

    #[test]
    fn every_file_of_the_page_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/page");
        for entry in std::fs::read_dir(folder).expect("the page") {
            let name = entry.expect("a file").file_name().into_string().expect("UTF-8");
            let path = if name == "index.html" { "/".to_owned() } else { format!("/{name}") };
            assert!(FILES.iter().any(|(served, ..)| *served == path), "{name} is missing in FILES");
        }
    }

    #[test]
    fn every_module_that_a_file_of_the_page_imports_is_served() {
        for (name, _, text) in FILES {
            let modules = text.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
            for module in modules {
                assert!(find(&format!("/{module}")).is_some(), "{name} imports {module}");
            }
        }
        assert!(find("/nothing.js").is_none(), "the control");
    }
}
