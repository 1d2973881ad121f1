//! Which ioctl commands a governed task may use, by the kind of file: what is not here is refused.
//!
//! A command is a number, and one number means different things to different drivers. So each is allowed for the kinds
//! of file on which it is known to do no more than its line says.

/// Any file: what the kernel answers before a driver sees it, and what programs ask of every file to learn its kind.
pub const ANY: u16 = 1 << 0;
/// A regular file or a directory.
pub const FILE: u16 = 1 << 1;
/// A regular file or a directory that the profile lets the task write (`fs_write`), however it is opened.
pub const WRITABLE: u16 = 1 << 2;
/// A terminal: whatever the kernel's terminal layer serves, pseudo-terminals and their masters included.
pub const TERMINAL: u16 = 1 << 3;
/// A socket.
pub const SOCKET: u16 = 1 << 4;
/// An anonymous inode: epoll, timerfd, inotify and their kin.
pub const ANONYMOUS: u16 = 1 << 5;
/// `/dev/random` and `/dev/urandom`.
pub const RANDOM: u16 = 1 << 6;
/// No kind: known by name, refused.
pub const NONE: u16 = 0;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// The kernel's name of it.
    pub name: &'static str,
    /// Its number: all that the kernel looks at of the second argument of ioctl(2).
    pub number: u32,
    /// The kinds of file on which it is allowed.
    pub kinds: u16,
    /// What it does, and so why it is allowed or not.
    pub why: &'static str,
}

macro_rules! ioctls {
    ($($name:ident = $number:literal, $kinds:expr, $why:literal;)*) => {
        /// Every command that has a name here.
        pub const IOCTLS: &[Ioctl] = &[
            $(Ioctl { name: stringify!($name), number: $number, kinds: $kinds, why: $why }),*
        ];

        /// The kinds of file on which a command is allowed. Two commands of one number do not compile.
        #[inline(always)]
        pub const fn kinds(command: u32) -> u16 {
            match command {
                $($number => $kinds,)*
                _ => NONE,
            }
        }
    };
}

/// Has signals sent on input. On a terminal, to its foreground group, unless fcntl(2) said to whom.
pub const FIOASYNC: u32 = 0x5452;
/// Becomes the session's controlling terminal; with 1 as its argument, takes it away from another session.
pub const TIOCSCTTY: u32 = 0x540E;
/// Waits until everything is sent; with 0 as its argument, sends a break.
pub const TCSBRK: u32 = 0x5409;

ioctls! {
    // The descriptor itself.
    FIOCLEX = 0x5451, ANY, "closes the descriptor at exec";
    FIONCLEX = 0x5450, ANY, "keeps the descriptor at exec";
    FIONBIO = 0x5421, ANY, "blocking or not";
    FIOASYNC = 0x5452, ANY, "signals on input, to whom fcntl(2) says; not of a terminal that the container did not open, nor to a process outside";
    FIOQSIZE = 0x5460, ANY, "the size of a file";
    FIONREAD = 0x541B, ANY, "bytes that can be read";

    // What isatty(3) and window managers of text ask of every descriptor.
    TCGETS = 0x5401, ANY, "reads a terminal's modes; isatty(3) is this";
    TIOCGWINSZ = 0x5413, ANY, "reads a terminal's size";
    TIOCGPGRP = 0x540F, ANY, "reads a terminal's foreground group";

    // Terminals: modes, size, job control, flow.
    TCSETS = 0x5402, TERMINAL, "sets modes";
    TCSETSW = 0x5403, TERMINAL, "sets modes after output";
    TCSETSF = 0x5404, TERMINAL, "sets modes after output, drops input";
    TCGETA = 0x5405, TERMINAL, "reads modes, old form";
    TCSETA = 0x5406, TERMINAL, "sets modes, old form";
    TCSETAW = 0x5407, TERMINAL, "sets modes after output, old form";
    TCSETAF = 0x5408, TERMINAL, "sets modes after output, drops input, old form";
    TCGETS2 = 0x802C542A, TERMINAL, "reads modes with any speed";
    TCSETS2 = 0x402C542B, TERMINAL, "sets modes with any speed";
    TCSETSW2 = 0x402C542C, TERMINAL, "sets modes with any speed after output";
    TCSETSF2 = 0x402C542D, TERMINAL, "sets modes with any speed after output, drops input";
    TIOCGLCKTRMIOS = 0x5456, TERMINAL, "reads which modes are locked";
    TIOCGSOFTCAR = 0x5419, TERMINAL, "reads whether a carrier is looked for";
    TIOCGETD = 0x5424, TERMINAL, "reads the line discipline";
    TIOCGEXCL = 0x80045440, TERMINAL, "reads whether it is exclusive";
    TIOCGDEV = 0x80045432, TERMINAL, "reads its device number";
    TIOCGSID = 0x5429, TERMINAL, "reads its session";
    TIOCSPGRP = 0x5410, TERMINAL, "sets the foreground group, to one of the caller's session";
    TIOCSWINSZ = 0x5414, TERMINAL, "sets the size";
    TCXONC = 0x540A, TERMINAL, "stops and starts output";
    TCFLSH = 0x540B, TERMINAL, "drops what is not read or sent yet";
    TIOCOUTQ = 0x5411, TERMINAL | SOCKET, "bytes that are not sent yet (SIOCOUTQ)";
    TCSBRK = 0x5409, TERMINAL, "waits for output; only with an argument other than 0, which would send a break";
    TIOCSCTTY = 0x540E, TERMINAL, "becomes the controlling terminal; taking one from another session only where the container opened it";
    TIOCNOTTY = 0x5422, TERMINAL, "gives up the controlling terminal";
    TIOCPKT = 0x5420, TERMINAL, "a master's packet mode";
    TIOCGPKT = 0x80045438, TERMINAL, "reads a master's packet mode";
    TIOCGPTN = 0x80045430, TERMINAL, "reads a master's number";
    TIOCSPTLCK = 0x40045431, TERMINAL, "locks and unlocks a master's slave";
    TIOCGPTLCK = 0x80045439, TERMINAL, "reads whether a master's slave is locked";
    TIOCGPTPEER = 0x5441, TERMINAL, "opens a master's slave, which is judged as an open";

    // Terminals: never.
    TIOCSTI = 0x5412, NONE, "types into a terminal, for whoever reads it next";
    TIOCLINUX = 0x541C, NONE, "pastes into a console, among others";
    TIOCCONS = 0x541D, NONE, "turns the console's output to a terminal";
    TIOCSETD = 0x5423, NONE, "sets the line discipline, for which the kernel loads modules";
    TIOCVHANGUP = 0x5437, NONE, "hangs a terminal up for everybody";
    TIOCEXCL = 0x540C, NONE, "keeps others from opening the terminal";
    TIOCNXCL = 0x540D, NONE, "takes that back";
    TIOCSIG = 0x40045436, NONE, "sends a signal to a terminal's foreground group";
    TIOCSSOFTCAR = 0x541A, NONE, "whether a carrier is looked for";
    TIOCSLCKTRMIOS = 0x5457, NONE, "locks modes";
    TCSBRKP = 0x5425, NONE, "sends a break: on a console, the first half of SysRq";
    TIOCSBRK = 0x5427, NONE, "begins a break";
    TIOCCBRK = 0x5428, NONE, "ends a break";
    TIOCMGET = 0x5415, NONE, "reads a modem's lines";
    TIOCMBIS = 0x5416, NONE, "sets some of a modem's lines";
    TIOCMBIC = 0x5417, NONE, "clears some of a modem's lines";
    TIOCMSET = 0x5418, NONE, "sets a modem's lines";
    TIOCMIWAIT = 0x545C, NONE, "waits for a modem's lines";
    TIOCGICOUNT = 0x545D, NONE, "reads how often a modem's lines changed";
    TIOCGSERIAL = 0x541E, NONE, "reads how a serial line is set up";
    TIOCSSERIAL = 0x541F, NONE, "sets a serial line up: its ports and interrupt";
    KDSETMODE = 0x4B3A, NONE, "sets a console's mode";
    KDSKBMODE = 0x4B45, NONE, "sets a keyboard's mode";
    KDSKBENT = 0x4B47, NONE, "changes what a key types, for every console";
    KDSKBSENT = 0x4B49, NONE, "changes what a function key types, for every console";
    KDFONTOP = 0x4B72, NONE, "changes a console's font";
    VT_ACTIVATE = 0x5606, NONE, "switches to another console";

    // Regular files and directories.
    FIGETBSZ = 0x2, FILE, "reads the block size";
    FS_IOC_GETFLAGS = 0x80086601, FILE, "reads a file's flags (lsattr)";
    FS_IOC32_GETFLAGS = 0x80046601, FILE, "reads a file's flags, for 32-bit programs";
    FS_IOC_GETVERSION = 0x80087601, FILE, "reads a file's generation";
    FS_IOC32_GETVERSION = 0x80047601, FILE, "reads a file's generation, for 32-bit programs";
    FS_IOC_FSGETXATTR = 0x801C581F, FILE, "reads a file's flags and project";
    FS_IOC_FIEMAP = 0xC020660B, FILE, "reads where a file has holes";
    FICLONE = 0x40049409, FILE, "shares blocks of a file that is open for reading with one that is open for writing";
    FICLONERANGE = 0x4020940D, FILE, "the same with a part of it";
    FS_IOC_SETFLAGS = 0x40086602, WRITABLE, "sets a file's flags (chattr)";
    FS_IOC32_SETFLAGS = 0x40046602, WRITABLE, "sets a file's flags, for 32-bit programs";

    // Regular files and directories: never.
    FIBMAP = 0x1, NONE, "reads where on the disk a file lies";
    FIDEDUPERANGE = 0xC0189436, NONE, "compares a file with one that need not be open for reading";
    FS_IOC_FSSETXATTR = 0x401C5820, NONE, "sets a file's project, whose quota it counts against";
    FS_IOC_SETVERSION = 0x40087602, NONE, "sets a file's generation, by which file handles know it";
    FS_IOC_GETFSLABEL = 0x81009431, NONE, "reads a file system's label";
    FS_IOC_SETFSLABEL = 0x41009432, NONE, "sets a file system's label";
    FS_IOC_SET_ENCRYPTION_POLICY = 0x800C6613, NONE, "encrypts a directory";
    FS_IOC_ADD_ENCRYPTION_KEY = 0xC0506617, NONE, "adds a key to a file system";
    FS_IOC_REMOVE_ENCRYPTION_KEY = 0xC0406618, NONE, "removes a key from a file system";
    FS_IOC_ENABLE_VERITY = 0x40806685, NONE, "makes a file unchangeable for good";
    FIFREEZE = 0xC0045877, NONE, "stops all writing to a file system";
    FITHAW = 0xC0045878, NONE, "takes that back";
    FITRIM = 0xC0185879, NONE, "discards a disk's free blocks";
    EXT4_IOC_MOVE_EXT = 0xC028660F, NONE, "exchanges blocks of two files";
    EXT4_IOC_RESIZE_FS = 0x40086610, NONE, "resizes a file system";
    EXT4_IOC_SWAP_BOOT = 0x6611, NONE, "exchanges a file with the boot loader's";
    EXT4_IOC_SHUTDOWN = 0x8004587D, NONE, "shuts a file system down";
    BTRFS_IOC_SNAP_CREATE_V2 = 0x50009417, NONE, "makes a snapshot";
    BTRFS_IOC_TREE_SEARCH = 0xD0009411, NONE, "reads a file system's own tables";

    // Sockets.
    SIOCATMARK = 0x8905, SOCKET, "whether the next byte is the urgent one";
    SIOCOUTQNSD = 0x894B, SOCKET, "bytes that were never sent";
    SIOCGSTAMP_OLD = 0x8906, SOCKET, "when the last packet came";
    SIOCGSTAMPNS_OLD = 0x8907, SOCKET, "the same in nanoseconds";
    SIOCGSTAMP_NEW = 0x80108906, SOCKET, "the same with a 64-bit time";
    SIOCGSTAMPNS_NEW = 0x80108907, SOCKET, "the same in nanoseconds, with a 64-bit time";
    FIOGETOWN = 0x8903, SOCKET, "reads who is sent signals on input";
    SIOCGPGRP = 0x8904, SOCKET, "reads who is sent signals on input";
    SIOCGIFNAME = 0x8910, SOCKET, "reads an interface's name";
    SIOCGIFCONF = 0x8912, SOCKET, "reads the interfaces' addresses";
    SIOCGIFFLAGS = 0x8913, SOCKET, "reads an interface's flags";
    SIOCGIFADDR = 0x8915, SOCKET, "reads an interface's address";
    SIOCGIFDSTADDR = 0x8917, SOCKET, "reads an interface's peer";
    SIOCGIFBRDADDR = 0x8919, SOCKET, "reads an interface's broadcast address";
    SIOCGIFNETMASK = 0x891B, SOCKET, "reads an interface's netmask";
    SIOCGIFMETRIC = 0x891D, SOCKET, "reads an interface's metric";
    SIOCGIFMTU = 0x8921, SOCKET, "reads an interface's packet size";
    SIOCGIFHWADDR = 0x8927, SOCKET, "reads an interface's hardware address";
    SIOCGIFINDEX = 0x8933, SOCKET, "reads an interface's number";
    SIOCGIFTXQLEN = 0x8942, SOCKET, "reads an interface's queue length";

    // Sockets: never.
    FIOSETOWN = 0x8901, NONE, "sends signals on input to a process";
    SIOCSPGRP = 0x8902, NONE, "sends signals on input to a process";
    SIOCADDRT = 0x890B, NONE, "adds a route";
    SIOCDELRT = 0x890C, NONE, "removes a route";
    SIOCSIFLINK = 0x8911, NONE, "sets an interface's channel";
    SIOCSIFFLAGS = 0x8914, NONE, "sets an interface's flags: up, down, promiscuous";
    SIOCSIFADDR = 0x8916, NONE, "sets an interface's address";
    SIOCSIFDSTADDR = 0x8918, NONE, "sets an interface's peer";
    SIOCSIFBRDADDR = 0x891A, NONE, "sets an interface's broadcast address";
    SIOCSIFNETMASK = 0x891C, NONE, "sets an interface's netmask";
    SIOCSIFMETRIC = 0x891E, NONE, "sets an interface's metric";
    SIOCSIFMTU = 0x8922, NONE, "sets an interface's packet size";
    SIOCSIFNAME = 0x8923, NONE, "renames an interface";
    SIOCSIFHWADDR = 0x8924, NONE, "sets an interface's hardware address";
    SIOCADDMULTI = 0x8931, NONE, "adds a multicast address";
    SIOCDELMULTI = 0x8932, NONE, "removes a multicast address";
    SIOCDIFADDR = 0x8936, NONE, "removes an interface's address";
    SIOCGIFBR = 0x8940, NONE, "a bridge's commands, writing ones among them";
    SIOCSIFBR = 0x8941, NONE, "a bridge's commands";
    SIOCSIFTXQLEN = 0x8943, NONE, "sets an interface's queue length";
    SIOCETHTOOL = 0x8946, NONE, "a network card's commands, writing ones among them";
    SIOCGSKNS = 0x894C, NONE, "opens a socket's network namespace";
    SIOCDARP = 0x8953, NONE, "removes a neighbour";
    SIOCGARP = 0x8954, NONE, "reads a neighbour";
    SIOCSARP = 0x8955, NONE, "sets a neighbour's hardware address";
    SIOCGIFMAP = 0x8970, NONE, "reads where a card lies in memory";
    SIOCSIFMAP = 0x8971, NONE, "sets where a card lies in memory";
    SIOCGIFVLAN = 0x8982, NONE, "a VLAN's commands, writing ones among them";
    SIOCSIFVLAN = 0x8983, NONE, "a VLAN's commands";
    SIOCBONDENSLAVE = 0x8990, NONE, "adds a card to a bond";
    SIOCBRADDBR = 0x89A0, NONE, "makes a bridge";
    SIOCBRADDIF = 0x89A2, NONE, "adds an interface to a bridge";
    SIOCSHWTSTAMP = 0x89B0, NONE, "sets a card's clock stamps";
    SIOCUNIXFILE = 0x89E0, NONE, "opens the file that a unix socket is bound to";

    // Anonymous inodes.
    EPIOCSPARAMS = 0x40088A01, ANONYMOUS, "how long an epoll polls";
    EPIOCGPARAMS = 0x80088A02, ANONYMOUS, "reads that";
    TFD_IOC_SET_TICKS = 0x40085400, ANONYMOUS, "sets how often a timer went off";
    INOTIFY_IOC_SETNEXTWD = 0x40044900, ANONYMOUS, "chooses the next watch's number";

    // Anonymous inodes: never.
    UFFDIO_API = 0xC018AA3F, NONE, "begins to answer page faults, perhaps another process's";
    SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100, NONE, "answers another process's system calls";
    PERF_EVENT_IOC_ENABLE = 0x2400, NONE, "starts a counter";
    PIDFD_GET_MNT_NAMESPACE = 0xFF03, NONE, "opens a process's mount namespace";
    PIDFD_GET_NET_NAMESPACE = 0xFF04, NONE, "opens a process's network namespace";
    NS_GET_USERNS = 0xB701, NONE, "opens the user namespace that owns a namespace";
    NS_GET_PARENT = 0xB702, NONE, "opens the namespace above one";

    // Other devices.
    RNDGETENTCNT = 0x80045200, RANDOM, "reads how much entropy there is";
    RNDADDENTROPY = 0x40085203, NONE, "credits entropy";
    RNDADDTOENTCNT = 0x40045201, NONE, "credits entropy";
    RNDZAPENTCNT = 0x5204, NONE, "forgets entropy";
    RNDRESEEDCRNG = 0x5207, NONE, "seeds again";
    TUNSETIFF = 0x400454CA, NONE, "makes a network interface";
    FUSE_DEV_IOC_CLONE = 0x8004E500, NONE, "serves a file system with one more thread";
    KVM_CREATE_VM = 0xAE01, NONE, "makes a virtual machine";
    BLKGETSIZE64 = 0x80081272, NONE, "reads a disk's size";
    BLKDISCARD = 0x1277, NONE, "discards blocks of a disk";
    BLKROSET = 0x125D, NONE, "makes a disk read-only or not";
    SG_IO = 0x2285, NONE, "sends a command to a disk";
}

/// The name of a command, for people.
pub fn name(command: u32) -> Option<&'static str> {
    IOCTLS.iter().find(|ioctl| ioctl.number == command).map(|ioctl| ioctl.name)
}

/// A command by its name.
pub fn named(name: &str) -> Option<&'static Ioctl> {
    IOCTLS.iter().find(|ioctl| ioctl.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_unique() {
        for (at, ioctl) in IOCTLS.iter().enumerate() {
            assert!(!ioctl.why.is_empty());
            for other in &IOCTLS[at + 1..] {
                assert_ne!(ioctl.number, other.number, "{} and {}", ioctl.name, other.name);
                assert_ne!(ioctl.name, other.name);
            }
            assert_eq!(kinds(ioctl.number), ioctl.kinds, "{}", ioctl.name);
            assert_eq!(name(ioctl.number), Some(ioctl.name));
        }
    }

    #[test]
    fn nothing_that_injects_configures_or_freezes_is_allowed_anywhere() {
        for name in ["TIOCSTI", "TIOCLINUX", "TIOCCONS", "TIOCSETD", "FIFREEZE", "FIDEDUPERANGE", "FIOSETOWN"]
        {
            assert_eq!(named(name).unwrap().kinds, NONE, "{name}");
        }
        // Routes, interfaces, neighbours: every command that sets one begins so.
        for ioctl in IOCTLS.iter().filter(|ioctl| ioctl.name.starts_with("SIOCS")) {
            assert_eq!(ioctl.kinds, NONE, "{}", ioctl.name);
        }
        assert_eq!(kinds(0xdead_beef), NONE);
    }
}
