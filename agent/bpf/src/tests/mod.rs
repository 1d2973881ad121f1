//! Tests of several files at once. Those of `vm`, `vm_egress` and `vm_records` load the programs, in the guest.

mod moves;
mod vm;
mod vm_egress;
mod vm_records;

use ringfence_policy::{
    Capabilities,
    compiled::{CompiledPolicy, Kind, Place, PlaceRule},
};

/// A policy of these rules, which grants nothing else.
pub(crate) fn policy(initial: u16, places: Vec<PlaceRule>) -> CompiledPolicy {
    CompiledPolicy {
        profile: "test".into(),
        audit_mode: false,
        initial,
        record: 0,
        inet: false,
        capabilities: Capabilities::NONE,
        flags: 0,
        places,
        nets: Vec::new(),
        names: Default::default(),
        rules: Vec::new(),
    }
}

pub(crate) fn rule(place: Place, kind: Kind, allow: u16, deny: u16, reset: u16) -> PlaceRule {
    PlaceRule { allow, deny, reset, ..PlaceRule::nothing(place, kind) }
}
