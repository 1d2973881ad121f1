//! A client's configuration with Ringfence put before each stdio server, and taken out again. Pure.
//!
//! The text is edited, not written anew: comments, order and white space stay.

use jsonc_parser::{
    ParseOptions,
    cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode},
};
use ringfence_session::line::MAX_CONFIG;

/// Where a client keeps its servers: the key of the object that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// Claude Desktop and Claude Code: `mcpServers`, also those of single projects.
    Claude,
    /// Cursor: `mcpServers`.
    Cursor,
    /// Windsurf: `mcpServers`.
    Windsurf,
    /// VS Code: `servers` in mcp.json, or `mcp.servers` in settings.json.
    Vscode,
    /// Zed: `context_servers`.
    Zed,
}

impl Client {
    const fn paths(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Claude | Self::Cursor | Self::Windsurf => &[&["mcpServers"]],
            Self::Vscode => &[&["servers"], &["mcp", "servers"]],
            Self::Zed => &[&["context_servers"]],
        }
    }
}

/// Every place where any client has servers, tried in this order where no client was named.
const ANY: &[&[&str]] = &[&["mcpServers"], &["servers"], &["mcp", "servers"], &["context_servers"]];

/// Why a configuration cannot be rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not JSON, comments allowed.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// Too long to be one.
    #[error("longer than {MAX_CONFIG} bytes: this is no client's configuration")]
    Long,
    /// No servers in it.
    #[error("it has no servers: expected an object under {0}")]
    NoServers(String),
}

/// A rewritten configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The text.
    pub text: String,
    /// Names of the servers that were changed.
    pub changed: Vec<String>,
    /// Names of those left as they are, and why.
    pub left: Vec<(String, &'static str)>,
}

/// Puts `program` before the command of every stdio server, or takes it out again (`undo`).
///
/// # Errors
/// [`Error`]; nothing is guessed.
pub fn rewrite(text: &str, client: Option<Client>, program: &str, undo: bool) -> Result<Rewritten, Error> {
    if text.len() > MAX_CONFIG {
        return Err(Error::Long);
    }
    let root =
        CstRootNode::parse(text, &ParseOptions::default()).map_err(|e| Error::Syntax(e.to_string()))?;
    let paths = client.map_or(ANY, Client::paths);
    let mut places = Vec::new();
    if let Some(top) = root.object_value() {
        places.extend(paths.iter().find_map(|path| descend(&top, path)));
        if matches!(client, None | Some(Client::Claude)) {
            places.extend(projects(&top));
        }
    }
    if places.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| format!("\"{}\"", path.join("."))).collect();
        return Err(Error::NoServers(names.join(" or ")));
    }
    let (mut changed, mut left) = (Vec::new(), Vec::new());
    for property in places.iter().flat_map(CstObject::properties) {
        let Some(name) = property.decoded_name() else { continue };
        let done = match property.object_value() {
            None => Err("it is not an object"),
            Some(server) if undo => unwrap(&server, program),
            Some(server) => wrap(&server, &name, program),
        };
        match done {
            Ok(()) => changed.push(name),
            Err(why) => left.push((name, why)),
        }
    }
    Ok(Rewritten { text: root.to_string(), changed, left })
}

/// Servers that Claude Code keeps for one project each: its default scope, in the user's file.
fn projects(top: &CstObject) -> Vec<CstObject> {
    let projects = top.object_value("projects").into_iter().flat_map(|projects| projects.properties());
    projects.filter_map(|project| project.object_value()?.object_value("mcpServers")).collect()
}

fn descend(top: &CstObject, path: &[&str]) -> Option<CstObject> {
    path.iter().try_fold(top.clone(), |object, key| object.object_value(key))
}

fn text_of(node: Option<CstNode>) -> Option<String> {
    node?.as_string_lit()?.decoded_value().ok()
}

/// The arguments of a server, if they are what arguments are.
fn arguments(server: &CstObject) -> Result<Vec<String>, &'static str> {
    let Some(property) = server.get("args") else { return Ok(Vec::new()) };
    let list: CstArray = property.array_value().ok_or("its args are not a list")?;
    list.elements().into_iter().map(|e| text_of(Some(e)).ok_or("its args are not all strings")).collect()
}

/// Whether a command is the interceptor already: by its usual name, or as the program that wraps.
fn is_ours(command: &str, arguments: &[String], program: &str) -> bool {
    let name = command.rsplit(['/', '\\']).next().unwrap_or(command);
    (name == "ringfence" || command == program) && arguments.first().is_some_and(|first| first == "mcp")
}

/// The flag that names the server, as the interceptor takes it: a name may begin like a flag, or be empty.
fn named(name: &str) -> Vec<String> {
    match name {
        "" => Vec::new(),
        dashed if dashed.starts_with('-') => vec![format!("--server-name={dashed}")],
        plain => vec!["--server-name".to_owned(), plain.to_owned()],
    }
}

fn wrap(server: &CstObject, name: &str, program: &str) -> Result<(), &'static str> {
    let Some(command) = server.get("command") else {
        return Err("it has no command: a remote server, which the interceptor does not see");
    };
    let command_text = text_of(command.value()).ok_or("its command is not a string")?;
    let old = arguments(server)?;
    if is_ours(&command_text, &old, program) {
        return Err("it is wrapped already");
    }
    let ours = ["mcp".to_owned()].into_iter().chain(named(name)).chain(["--".to_owned(), command_text]);
    set_arguments(server, ours.chain(old));
    command.set_value(CstInputValue::String(program.to_owned()));
    Ok(())
}

fn unwrap(server: &CstObject, program: &str) -> Result<(), &'static str> {
    let Some(command) = server.get("command") else { return Err("it has no command") };
    let command_text = text_of(command.value()).ok_or("its command is not a string")?;
    let ours = arguments(server)?;
    if !is_ours(&command_text, &ours, program) {
        return Err("it is not wrapped");
    }
    let mut old = ours.into_iter().skip_while(|argument| argument != "--").skip(1);
    let original = old.next().ok_or("no command stands behind its --")?;
    let rest: Vec<String> = old.collect();
    if rest.is_empty() {
        if let Some(arguments) = server.get("args") {
            arguments.remove();
        }
    } else {
        set_arguments(server, rest.into_iter());
    }
    command.set_value(CstInputValue::String(original));
    Ok(())
}

fn set_arguments(server: &CstObject, arguments: impl Iterator<Item = String>) {
    let list = CstInputValue::Array(arguments.map(CstInputValue::String).collect());
    match server.get("args") {
        Some(property) => property.set_value(list),
        None => {
            // Right behind the command, where people look for it.
            let at = server.get("command").map_or(0, |command| command.property_index() + 1);
            server.insert(at, "args", list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, Error, rewrite};

    #[test]
    fn servers_of_single_projects_are_servers_too() {
        let text = r#"{"projects": {"/a": {"mcpServers": {"x": {"command": "x", "args": ["1"]}}}, "/b": {},
            "/c": {"mcpServers": {"y": {"command": "y", "args": ["1"]}}}}, "mcpServers": {"z": {"command": "z", "args": ["1"]}}}"#;
        let done = rewrite(text, None, "ringfence", false).expect("a configuration");
        assert_eq!(done.changed, ["z", "x", "y"]);
        let undone = rewrite(&done.text, Some(Client::Claude), "ringfence", true).expect("a configuration");
        assert_eq!(undone.text, text);
        let without = r#"{"projects": {"/a": {"mcpServers": {"x": {"command": "x", "args": ["1"]}}}}}"#;
        assert_eq!(rewrite(without, None, "ringfence", false).expect("a configuration").changed, ["x"]);
        assert!(
            rewrite(without, Some(Client::Cursor), "ringfence", false).is_err(),
            "Cursor has no projects"
        );
    }

    const CLAUDE: &str = r#"{
  // kept
  "mcpServers": {
    "github": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-github"],
      "env": { "GITHUB_TOKEN": "x" }
    },
    "bare": { "command": "srv" },
    "remote": { "url": "https://example.com/sse" }
  },
  "other": 1
}
"#;

    #[test]
    fn servers_are_wrapped_once_and_unwrapped_to_what_they_were() {
        let wrapped = rewrite(CLAUDE, None, "ringfence", false).expect("servers");
        assert_eq!(wrapped.changed, ["github", "bare"]);
        assert_eq!(wrapped.left[0].0, "remote");
        assert!(
            wrapped.text.contains("// kept") && wrapped.text.contains(r#""env": { "GITHUB_TOKEN": "x" }"#)
        );
        assert!(wrapped.text.contains(
            r#"["mcp", "--server-name", "github", "--", "npx", "-y", "@modelcontextprotocol/server-github"]"#
        ));
        let again = rewrite(&wrapped.text, None, "ringfence", false).expect("servers");
        assert_eq!((again.changed.len(), &again.text), (0, &wrapped.text));
        let undone = rewrite(&wrapped.text, Some(Client::Claude), "ringfence", true).expect("servers");
        let parse = |text: &str| {
            jsonc_parser::cst::CstRootNode::parse(text, &Default::default()).map(|r| r.to_string())
        };
        assert_eq!(undone.changed, ["github", "bare"]);
        assert!(parse(&undone.text).is_ok());
        for piece in
            [r#""command": "npx""#, r#""command": "srv""#, r#"["-y", "@modelcontextprotocol/server-github"]"#]
        {
            assert!(undone.text.contains(piece), "{piece}: {}", undone.text);
        }
        assert!(!undone.text.contains("ringfence"));
    }

    #[test]
    fn vs_codes_form_and_absolute_programs_work() {
        let text = r#"{"servers":{"a":{"type":"stdio","command":"x","args":[]}}}"#;
        let wrapped =
            rewrite(text, Some(Client::Vscode), "/usr/local/bin/ringfence", false).expect("servers");
        assert!(
            wrapped.text.contains(r#""/usr/local/bin/ringfence""#)
                && wrapped.text.contains(r#""type":"stdio""#)
        );
        assert_eq!(rewrite(&wrapped.text, None, "ringfence", true).expect("servers").changed, ["a"]);
        let nested = r#"{"mcp":{"servers":{"a":{"command":"x"}}}}"#;
        assert_eq!(
            rewrite(nested, Some(Client::Vscode), "ringfence", false).expect("servers").changed,
            ["a"]
        );
    }

    #[test]
    fn names_that_look_like_flags_or_like_nothing_do_not_break_the_server() {
        let text = r#"{"mcpServers":{"--":{"command":"a","args":["1"]},"-x":{"command":"b","args":["--","2"]},"":{"command":"c","args":["3"]}}}"#;
        for program in ["ringfence", "/opt/ringfence-0.1"] {
            let wrapped = rewrite(text, None, program, false).expect("servers");
            for written in [
                r#"["mcp", "--server-name=--", "--", "a", "1"]"#,
                r#"["mcp", "--server-name=-x", "--", "b", "--", "2"]"#,
                r#"["mcp", "--", "c", "3"]"#,
            ] {
                assert!(wrapped.text.contains(written), "{}", wrapped.text);
            }
            let again = rewrite(&wrapped.text, None, program, false).expect("servers");
            assert_eq!(again.changed.len(), 0, "wrapped once, by whatever name the program has");
            let undone = rewrite(&wrapped.text, None, program, true).expect("servers");
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
            assert_eq!(value(&undone.text), value(text));
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused_and_odd_servers_are_left() {
        assert!(matches!(rewrite("{", None, "r", false), Err(Error::Syntax(_))));
        assert!(matches!(rewrite("[]", None, "r", false), Err(Error::NoServers(_))));
        assert!(matches!(rewrite("", None, "r", false), Err(Error::NoServers(_) | Error::Syntax(_))));
        let odd = r#"{"mcpServers":{"a":3,"b":{"command":4},"c":{"command":"x","args":"y"},"d":{"command":"x","args":[1]}}}"#;
        let left = rewrite(odd, None, "r", false).expect("servers");
        assert_eq!((left.changed.len(), left.left.len(), left.text.as_str()), (0, 4, odd));
    }
}
