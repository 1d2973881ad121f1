//! Socket options and control messages: only what the tables of `ringfence_common::options` name, and the options that
//! the profile does.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::options::{is_allowed, is_allowed_control, target};
use ringfence_common::policy::named;
use ringfence_common::unlisted::value;

use crate::decide::take_policy;
use crate::emit::{EACCES, EPERM, begin_request, refuse};
use crate::fold::is_named;
use crate::identity::governed;
use crate::memory::{fetch, probe};
use crate::socket::Socket;

/// Most control messages of one message that are looked at; one with more is refused.
const CONTROLS: u32 = 8;
/// Bytes of a `cmsghdr`.
const CMSG: u64 = 16;
/// What [`refused_control`] says of control data that cannot be read to its end.
const UNREADABLE: u32 = u32::MAX;

/// The first control message of a message that may not be sent, as an event's target has it; `None`: all may. `at` is
/// the kernel's own copy.
#[inline(always)]
pub(crate) fn refused_control(mut at: u64, mut left: u64) -> Option<u32> {
    let mut looked = 0;
    while looked < CONTROLS {
        looked += 1;
        if left < CMSG {
            return None;
        }
        let mut header = [0u64; 2];
        // SAFETY: `header` has 16 bytes.
        if !unsafe { probe((&raw mut header).cast::<u8>(), CMSG, at) } {
            return Some(UNREADABLE);
        }
        let (len, level, kind) = (header[0], header[1] as i32, (header[1] >> 32) as i32);
        if !is_allowed_control(level, kind) {
            return Some(target(level, kind));
        }
        // The kernel refuses what is shorter than its header or longer than what is left.
        if len < CMSG || len >= left {
            return None;
        }
        let step = (len + 7) & !7;
        if step >= left {
            return None;
        }
        at += step;
        left -= step;
    }
    Some(UNREADABLE)
}

/// setsockopt(2), on sockets of every family.
#[lsm(hook = "socket_setsockopt")]
pub fn socket_setsockopt(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (level, option): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    if is_allowed(level, option) {
        return 0;
    }
    // SAFETY: `task` is a tag; the socket is the hook's argument.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        let known = take_policy(task, fetch(&raw const (*task).container));
        if known && is_named(task, named::OPTION, value(level, option)) {
            return 0;
        }
        let request = begin_request(task, op::SETSOCKOPT, 0, socket.detail());
        (*request).target = target(level, option);
        refuse(task, if known { fixed::OPTION } else { fixed::NO_POLICY }, EPERM)
    }
}
