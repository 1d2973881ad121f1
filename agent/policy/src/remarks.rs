//! What is odd about a valid profile: denies that can never match or leave something out, nameservers that an entry opens, paths
//! that do not exist.

use super::{
    AxisRules, Profile, Rule,
    compile::noted,
    compiled::{CompiledPolicy, Kind, Place, PlaceRule, RuleId},
    parse::net_entry,
    resolve::Resolver,
};
use ringfence_common::policy::axis::{EXEC, READ, UNIX, WRITE};
use ringfence_grant::{Denied, HostPattern, NetEntry, PathEntry};
use ringfence_wire::egress::NameOptions;
use std::path::Path;

/// The port of nameservers.
const DNS: u16 = 53;

/// Remarks on a profile, each with its line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remarks {
    /// Denies without effect, names that a deny leaves out, and entries that grant more than they seem to.
    pub denies: Vec<String>,
    /// Paths that do not exist on this host: many, if a profile is made for many hosts.
    pub missing: Vec<String>,
}

/// Remarks on a profile that was compiled to `policy` for this root and working directory.
pub fn remarks(profile: &Profile, policy: &CompiledPolicy, root: &Path, workdir: Option<&Path>) -> Remarks {
    let mut all = Remarks::default();
    let deny = &profile.denials;
    let grant = &profile.rules;
    let axes = [
        (&deny.fs_read, &grant.fs_read, READ),
        (&deny.fs_write, &grant.fs_write, WRITE),
        (&deny.exec, &grant.exec, EXEC),
        (&deny.net, &grant.net, UNIX),
    ];
    for (denied, granted, bit) in axes {
        // Anything may lie in a working directory that nobody has named.
        let anywhere = workdir.is_none() && granted.listed().iter().any(Rule::uses_workdir);
        all.denies
            .extend(denied.iter().filter_map(|rule| Some(noted(rule, &idle(policy, rule, bit, anywhere)?))));
        all.denies
            .extend(denied.iter().filter_map(|rule| Some(noted(rule, &spared(rule, granted, workdir)?))));
    }
    if policy.names.options.ask.is_none() {
        all.denies.extend(deny.net.iter().filter_map(|rule| Some(noted(rule, idle_host(rule, &grant.net)?))));
    }
    all.denies.extend(
        deny.net.iter().filter_map(|rule| Some(noted(rule, &leaves_below(rule, &grant.net, &deny.net)?))),
    );
    if !policy.names.is_empty() {
        all.denies
            .extend(grant.net.listed().iter().filter_map(|rule| Some(noted(rule, opens_nameserver(rule)?))));
    }
    if policy.names.is_empty() && profile.net_options != NameOptions::default() {
        all.denies.push(format!("{}: [net]: it has no effect: no name is granted", profile.file.display()));
    }
    let Ok(mut resolver) = Resolver::new(root) else { return all };
    let granted = [&grant.fs_read, &grant.fs_write, &grant.exec].into_iter().flat_map(AxisRules::listed);
    let named = granted.chain(&deny.fs_read).chain(&deny.fs_write).chain(&deny.exec);
    for rule in named.filter(|rule| workdir.is_some() || !rule.uses_workdir()) {
        if let Some(entry) = written_path(rule, workdir)
            && !resolver.resolve(entry.anchor().as_bytes()).exists
        {
            all.missing.push(noted(rule, "it does not exist on this host"));
        }
    }
    all
}

/// A rule's path, if it is one and not a name.
fn written_path(rule: &Rule, workdir: Option<&Path>) -> Option<PathEntry> {
    let path = rule.path(workdir).ok()?;
    let is_name = path.names().next().is_some();
    (!is_name).then_some(path)
}

/// The names that a pattern does not deny because another file grants them; the pattern's author may not know of them.
fn spared(rule: &Rule, granted: &AxisRules, workdir: Option<&Path>) -> Option<String> {
    let Ok(Denied::Pattern(pattern)) = rule.denied_path(workdir) else { return None };
    let mut names: Vec<String> = granted
        .listed()
        .iter()
        .filter(|grant| grant.file != rule.file)
        .filter_map(|grant| Some(grant.path(workdir).ok()?.anywhere()?.to_owned()))
        .filter(|name| pattern.matches(name))
        .collect();
    names.sort();
    names.dedup();
    let shown = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| {
        format!("it does not deny {shown}: the profile that this one extends grants that name in full")
    })
}

/// Why the deny of a name changes nothing, if it does not.
fn idle_host(rule: &Rule, granted: &AxisRules) -> Option<&'static str> {
    let denied = net_entry(rule)?;
    let NetEntry::Host { host, port, .. } = &denied else { return None };
    let overlaps = |grant: &Rule| match net_entry(grant) {
        Some(NetEntry::Host { host: of, port: at, .. }) => {
            of.meet(host).is_some() && (at.is_none() || port.is_none() || at == *port)
        }
        _ => false,
    };
    let is_idle = !granted.listed().iter().any(overlaps);
    is_idle.then_some("it can never match: no such name is granted, and an address that is granted is reached whatever it is called")
}

/// The names below a denied one that a wildcard grants all the same, if there are any.
fn leaves_below(rule: &Rule, granted: &AxisRules, denied: &[Rule]) -> Option<String> {
    let NetEntry::Host { host: HostPattern::Exact(name), port, .. } = net_entry(rule)? else { return None };
    let below = HostPattern::Below(name);
    let grants_some = |grant: &Rule| match net_entry(grant) {
        Some(NetEntry::Host { host: of @ HostPattern::Below(_), port: at, .. }) => {
            of.meet(&below).is_some() && (at.is_none() || port.is_none() || at == port)
        }
        _ => false,
    };
    let denies_all = |deny: &Rule| match net_entry(deny) {
        Some(NetEntry::Host { host: of, port: at, .. }) => {
            of.meet(&below).as_ref() == Some(&below) && (at.is_none() || at == port)
        }
        _ => false,
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    (granted.listed().iter().any(grants_some) && !denied.iter().any(denies_all)).then(|| {
        format!(
            "it denies this one name; names below it are granted still: add \"{below}{port}\" to deny them"
        )
    })
}

/// What is open where addresses are granted at the port of nameservers, beside names.
fn opens_nameserver(rule: &Rule) -> Option<&'static str> {
    let NetEntry::Inet { port: Some(DNS), .. } = net_entry(rule)? else { return None };
    Some(
        "beside names: nameservers there are asked directly, for any name, and give real addresses, which are not granted by \
         the names; what is asked can carry data out",
    )
}

/// Why a deny changes nothing, if it does not.
fn idle(policy: &CompiledPolicy, rule: &Rule, bit: u16, anywhere: bool) -> Option<String> {
    let id = policy.rules.iter().position(|one| {
        one.key == rule.key
            && one.text == rule.text
            && one.line == rule.line
            && one.file.as_deref() == Some(&*rule.file)
    })?;
    let id = RuleId::try_from(id).ok()?;
    let at = bit.trailing_zeros() as usize;
    let of = |place: &PlaceRule| place.deny_rules.get(at).copied().flatten();
    let mine: Vec<&PlaceRule> = policy.places.iter().filter(|place| of(place) == Some(id)).collect();
    if mine.is_empty() {
        // An address's, or another rule stands at the very same place.
        return None;
    }
    let others = || policy.places.iter().filter(|place| place.deny & bit != 0 && of(place) != Some(id));
    let by = mine
        .iter()
        .map(|place| others().find(|other| covers(policy, other, &place.place, bit)))
        .collect::<Option<Vec<_>>>();
    if let Some(by) = by {
        let by = by.first().and_then(|place| policy.rules.get(of(place)? as usize));
        return Some(format!(
            "it can never decide: {} denies all of it",
            by.map_or("another rule", |by| &by.id)
        ));
    }
    let idle = !anywhere && mine.iter().all(|place| !is_granted(policy, &place.place, bit));
    idle.then(|| "it can never match: nothing is granted there".to_owned())
}

/// Whether a deny's whole tree takes in a place.
fn covers(policy: &CompiledPolicy, deny: &PlaceRule, place: &Place, bit: u16) -> bool {
    // What a name that is granted keeps from one pattern, it keeps from all of them.
    let is_granted = |name: &[u8]| {
        let of_name = |rule: &&PlaceRule| matches!(&rule.place, Place::Name(of) if of == name);
        policy.places.iter().filter(of_name).any(|rule| rule.allow & bit != 0)
    };
    let is_pattern_of = |name: &[u8]| deny.place.is_pattern_of(name) && !is_granted(name);
    match (&deny.place, place) {
        (Place::Prefix(wide), Place::Prefix(narrow)) => narrow.starts_with(wide),
        (Place::Suffix(wide), Place::Suffix(narrow)) => narrow.ends_with(wide),
        (Place::Prefix(_) | Place::Suffix(_), Place::Name(name)) => is_pattern_of(name),
        (Place::Prefix(_) | Place::Suffix(_), Place::Path(path)) => {
            path.split(|b| *b == b'/').any(is_pattern_of)
        }
        (Place::Path(above), Place::Path(below)) if deny.kind == Kind::Tree => is_below(below, above),
        (Place::Name(name), Place::Path(path)) => {
            path.split(|b| *b == b'/').any(|part| part == name.as_slice())
        }
        _ => false,
    }
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    let rest = if above == b"/" { Some(path) } else { path.strip_prefix(above) };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Whether anything at, above or below a place is granted.
fn is_granted(policy: &CompiledPolicy, place: &Place, bit: u16) -> bool {
    let allows = policy.places.iter().filter(|rule| rule.allow & bit != 0);
    policy.initial & bit != 0
        || match place {
            Place::Path(path) => allows.into_iter().any(|rule| match &rule.place {
                Place::Path(other) => is_below(path, other) || is_below(other, path),
                Place::Name(_) => true,
                Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => false,
            }),
            Place::Name(_) | Place::Prefix(_) | Place::Suffix(_) => {
                allows.into_iter().any(|rule| matches!(rule.place, Place::Path(_) | Place::Name(_)))
            }
            Place::Abstract(_) | Place::Named { .. } => allows.into_iter().any(|rule| rule.place == *place),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CompileContext,
        tests::{Lab, toml},
    };

    fn of(read: &str, deny: &str) -> Vec<String> {
        let lab = Lab::new();
        lab.dir("srv/a");
        let text = toml(&format!("fs_read = {{ only = [{read}] }}"), &format!("fs_read = [{deny}]"), "none");
        let profile = lab.load(&text).unwrap_or_else(|e| panic!("{e}"));
        let root = lab.root();
        let policy = profile.compile(&CompileContext::new(&root, None)).unwrap_or_else(|e| panic!("{e}"));
        let Remarks { denies, missing } = remarks(&profile, &policy, &root, None);
        let all = denies.into_iter().chain(missing);
        all.map(|line| line.split_once("p.toml:").unwrap().1.to_owned()).collect()
    }

    #[test]
    fn a_name_that_a_pattern_leaves_out_because_another_file_grants_it_is_noted() {
        let lab = Lab::new();
        let base = lab.root().join("base.toml");
        let text = toml("fs_read = { only = [\"/\", \"**/.bashrc\", \"**/.gitconfig\"] }", "", "none");
        std::fs::write(&base, text).unwrap();
        let of = |deny: &str, grant: &str| {
            let text =
                format!("extends = {base:?}\n[grant]\nfs_read = {grant}\n[deny]\nfs_read = [{deny}]\n");
            let profile = lab.load(&text).unwrap_or_else(|e| panic!("{e}"));
            let root = lab.root();
            let policy = profile.compile(&CompileContext::new(&root, None)).unwrap_or_else(|e| panic!("{e}"));
            remarks(&profile, &policy, &root, None).denies
        };
        let noted = of("\"**/.bash*\"", "{ add = [] }");
        assert!(noted.iter().any(|line| line.contains("does not deny \".bashrc\"")), "{noted:?}");
        assert!(of("\"**/.zsh*\"", "{ add = [] }").is_empty(), "the control");
        let own = of("\"**/*.pem\"", "{ add = [\"**/cacert.pem\"] }");
        assert!(own.is_empty(), "who wrote both knows: {own:?}");
    }

    #[test]
    fn a_deny_that_decides_nothing_and_a_missing_path_are_noted() {
        assert_eq!(of("\"/srv\"", "\"/srv/a\", \"**/x\""), Vec::<String>::new(), "the control");
        assert_eq!(of("\"/srv/a\"", "\"/srv\""), Vec::<String>::new(), "a deny above an allow takes it away");
        let idle = "it can never match: nothing is granted there";
        assert_eq!(of("\"/srv/a\"", "\"/opt\"")[0], format!("9: deny.fs_read: \"/opt\": {idle}"));
        assert_eq!(of("", "\"**/x\""), [format!("9: deny.fs_read: \"**/x\": {idle}")]);
        let shadowed = of("\"/srv\"", "\"/srv\", \"/srv/a\"");
        assert_eq!(
            shadowed,
            ["9: deny.fs_read: \"/srv/a\": it can never decide: deny.fs_read:/srv denies all of it"]
        );
        assert_eq!(of("", "\"**/*.x\""), [format!("9: deny.fs_read: \"**/*.x\": {idle}")]);
        let within = of("\"/srv\"", "\"**/*.x\", \"**/*.a.x\", \"**/b.x\", \"/srv/c.x/d\"");
        assert_eq!(within.len(), 4, "{within:?}");
        assert!(
            within[..3].iter().all(|line| line.ends_with("deny.fs_read:**/*.x denies all of it")),
            "{within:?}"
        );
        let named = of("\"/srv\", \"**/b.x\"", "\"**/*.x\", \"**/b.x\"");
        assert_eq!(
            named,
            Vec::<String>::new(),
            "the pattern gives way to the name, the deny of the name does not"
        );
        let missing = of("\"/srv/none\", \"/srv/a\"", "");
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].ends_with("\"/srv/none\": it does not exist on this host"), "{missing:?}");
    }
}
