//! Composes QEMU's options for a window and a port.
//!
//! Stock QEMU from 7.2 on.
//!
//! In: where the window's file and the port's socket are for QEMU, and how much memory the guest
//! has. Out: words of a command line, or the same for libvirt.

use super::qemu_monitor;
use anyhow::{Context, bail, ensure};
use omniverb_session::vm::PORT_NAME;
use std::ffi::OsString;

/// A window that is plugged in: where QEMU finds it, and how large it is. The first is the
/// machine's own, the others are what it shares with neighbours.
pub(super) struct Plugged {
    pub(super) path: String,
    pub(super) bytes: u64,
}

/// Bytes of all of them.
pub(super) fn bytes(windows: &[Plugged]) -> u64 {
    windows.iter().map(|window| window.bytes).fold(0, u64::saturating_add)
}

/// Windows on the machine's first bus, where there is not room for many devices; the others are on
/// bridges of their own, so many on each.
const ON_FIRST_BUS: usize = 5;
const ON_BRIDGE: usize = 30;
/// Numbers of bridges, of which QEMU's own begin at one.
const FIRST_CHASSIS: usize = 201;
/// Numbers of the bridges for windows that are plugged in later.
const FIRST_LATER_CHASSIS: usize = 211;

/// A machine that has it can neither be migrated nor saved (QEMU: "Migration is disabled when using
/// feature 'peer mode' in device 'ivshmem'"): a copy would go on with links and memory whose other
/// ends know nothing of it. Stock QEMU has no option for that alone. The page that the guest sees
/// in it is empty and shared with no process.
const STAYS: &str = "omniverb-stays";

/// Windows that may be plugged in later: their numbers, and the path of QEMU's monitor for that.
#[derive(Clone, Copy)]
pub(super) struct Later<'a> {
    pub(super) monitor: &'a str,
    pub(super) first: u8,
    pub(super) last: u8,
}

/// The socket by which QEMU connects to its machine's mapper.
#[derive(Clone, Copy)]
pub(super) struct Maps<'a>(pub(super) &'a str);

impl Maps<'_> {
    /// The options. The mapper plays the device; QEMU calls it one for tests, since it does not
    /// know the type: virtio-pmem (27), of which one queue and 16 bytes of configuration are never
    /// used.
    fn words(self) -> [String; 4] {
        let path = self.0.replace(',', ",,");
        [
            "-chardev".into(),
            format!("socket,id=omniverb-mapped,path={path}"),
            "-device".into(),
            "vhost-user-test-device-pci,id=omniverb-mapped-here,chardev=omniverb-mapped,\
             virtio-id=27,num_vqs=1,vq_size=64,config_size=16"
                .into(),
        ]
    }
}

/// Options for the upper limits that are to be added: `-m`, and `-smp`.
#[derive(Default)]
pub(super) struct Room {
    pub(super) memory: Option<String>,
    pub(super) processors: Option<String>,
}

/// The words. `port`: where QEMU is to listen for the proxy: that one may be another in a while.
pub(super) fn words(
    windows: &[Plugged],
    port: &str,
    room: Room,
    (later, maps): (Option<Later<'_>>, Option<Maps<'_>>),
) -> Vec<String> {
    // Commas in values are doubled.
    let doubled = |path: &str| path.replace(',', ",,");
    let port = doubled(port);
    let mut words: Vec<String> = Vec::new();
    let mut option = |name: &str, value: String| words.extend([format!("-{name}"), value]);
    let more = [("m", room.memory), ("smp", room.processors)];
    for (name, value) in more.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        option(name, value);
    }
    for (index, Plugged { path, bytes }) in windows.iter().enumerate() {
        let (memory, device) = match index {
            0 => ("omniverb-window".to_owned(), "omniverb".to_owned()),
            number => (qemu_monitor::memory_id(number), qemu_monitor::device_id(number)),
        };
        let path = doubled(path);
        option(
            "object",
            format!("memory-backend-file,id={memory},mem-path={path},size={bytes},share=on"),
        );
        let mut bus = String::new();
        if let Some(beyond) = index.checked_sub(ON_FIRST_BUS) {
            let bridge = beyond / ON_BRIDGE;
            if beyond.is_multiple_of(ON_BRIDGE) {
                let chassis = FIRST_CHASSIS + bridge;
                option(
                    "device",
                    format!("pci-bridge,id=omniverb-bridge{bridge},chassis_nr={chassis},shpc=off"),
                );
            }
            bus = format!(",bus=omniverb-bridge{bridge}");
        }
        option("device", format!("virtio-pmem-pci,id={device},memdev={memory}{bus}"));
    }
    if let Some(Later { monitor: path, first, last }) = later {
        let mut buses: Vec<String> = (first..=last).map(qemu_monitor::bus_id).collect();
        buses.dedup();
        for (chassis, bus) in (FIRST_LATER_CHASSIS..).zip(buses) {
            // Without a controller for what is plugged in, firmware leaves no room for that.
            option("device", format!("pci-bridge,id={bus},chassis_nr={chassis},shpc=on"));
        }
        let path = doubled(path);
        option("chardev", format!("socket,id=omniverb-monitor,path={path},server=on,wait=off"));
        option("mon", "chardev=omniverb-monitor,mode=control".into());
    }
    option("object", format!("memory-backend-ram,id={STAYS},size=4096"));
    option("device", format!("ivshmem-plain,id={STAYS}-here,memdev={STAYS},master=off"));
    option("chardev", format!("socket,id=omniverb-control,path={port},server=on,wait=off"));
    option("device", "virtio-serial-pci,id=omniverb-serial".into());
    option(
        "device",
        format!("virtserialport,bus=omniverb-serial.0,chardev=omniverb-control,name={PORT_NAME}"),
    );
    if let Some(maps) = maps {
        words.extend(maps.words());
    }
    words
}

/// QEMU's own memory when nothing is said, in MiB.
const DEFAULT_MIB: u64 = 128;

/// The `-m` option to add to a command line: room for a window exists if the machine may have more
/// memory than it has. `None`: there is enough.
pub(super) fn memory(command: &[OsString], window_bytes: u64) -> anyhow::Result<Option<String>> {
    let said = said(command, "m")?;
    if said.split(',').any(|part| part.starts_with("maxmem=")) {
        return Ok(None);
    }
    let bytes = bytes_said(command)?;
    let beside = if said.is_empty() { String::new() } else { format!("{said},") };
    Ok(Some(beside + &room(bytes, window_bytes)))
}

/// How much memory a command line gives a machine.
pub(super) fn bytes_said(command: &[OsString]) -> anyhow::Result<u64> {
    let mut mib = DEFAULT_MIB;
    for part in said(command, "m")?.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            None => mib = in_mib(part)?,
            Some(("size", size)) => mib = in_mib(size)?,
            Some(_) => {}
        }
    }
    mib.checked_mul(1 << 20).context("the machine's memory has more than 2^64 bytes: give -m less")
}

/// How much it says that it may have, if it does.
pub(super) fn most_said(command: &[OsString]) -> anyhow::Result<Option<u64>> {
    let mut most = said(command, "m")?.split(',').filter_map(|part| part.strip_prefix("maxmem="));
    let mib = most.next_back().map(in_mib).transpose()?;
    Ok(mib.map(|mib| mib.saturating_mul(1 << 20)))
}

/// The last value of an option in a command line, `-option` or `--option`; empty if it has none.
pub(super) fn said<'a>(command: &'a [OsString], option: &str) -> anyhow::Result<&'a str> {
    let spellings = ["-", "--"].map(|dashes| OsString::from(format!("{dashes}{option}")));
    let mut said = "";
    let mut words = command.iter();
    while let Some(word) = words.next() {
        if spellings.contains(word) {
            let value = words.next().and_then(|word| word.to_str());
            said = value.with_context(|| format!("option -{option} needs a value"))?;
        }
    }
    Ok(said)
}

/// How much a machine of so many bytes may have, if there is to be room for a window.
pub(super) fn room(bytes: u64, window_bytes: u64) -> String {
    // Where it begins is QEMU's to choose, on a boundary of a GiB.
    let mib = bytes.saturating_add(window_bytes).div_ceil(1 << 20);
    format!("maxmem={}M", mib.next_multiple_of(1024).saturating_add(1024))
}

/// A word as a shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The elements of a libvirt domain for it: as nvdimms, since libvirt 9.0 starts no virtio-pmem.
pub(super) fn xml(
    name: &str,
    windows: &[Plugged],
    port: &str,
    memory: u64,
    maps: Option<Maps<'_>>,
) -> String {
    let escaped = |text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        text.replace('\'', "&apos;")
    };
    let (port, kib, slots) = (escaped(port), bytes(windows) / 1024, windows.len() + 3);
    let most_kib = memory.saturating_add(bytes(windows)).div_ceil(1 << 30).saturating_add(1) << 20;
    let one = |window: &Plugged| {
        let (path, window_kib) = (escaped(&window.path), window.bytes / 1024);
        format!(
            "<memory model='nvdimm' access='shared'>\n\
             \x20 <source><path>{path}</path></source>\n\
             \x20 <target><size unit='KiB'>{window_kib}</size><node>0</node></target>\n\
             </memory>\n"
        )
    };
    let memories: String = windows.iter().map(one).collect();
    let word = |word: String| format!("\x20 <qemu:arg value='{}'/>\n", escaped(&word));
    let maps = maps.map_or_else(String::new, |maps| {
        let words: String = maps.words().into_iter().map(word).collect();
        format!(
            "<!-- In <domain>, which says xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'. \
             Windows that it shares with neighbours are mapped into it, by QEMU 11.1 or newer; \
             libvirt knows nothing of this socket: what keeps QEMU in its bounds (AppArmor, \
             SELinux) has to let it connect there. -->\n\
             <qemu:commandline>\n{words}</qemu:commandline>\n"
        )
    });
    format!(
        "<!-- In <domain>. Its <memory> counts {kib} KiB of windows, too; <cpu> has a \
         cell 0 in <numa>, without them. A processor that is emulated (type='qemu') is one of \
         two that there may be: <vcpu current='1'>2</vcpu>. QEMU's user decides what <path> leads \
         to: unless you trust it with any file, let libvirt change no owners, and say\n\
         <seclabel type='static' model='dac' relabel='no'><label>USER:GROUP</label></seclabel> \
         -->\n\
         <maxMemory slots='{slots}' unit='KiB'>{most_kib}</maxMemory>\n\
         <features><acpi/></features>\n\
         <!-- In <devices>. The shmem has nothing: with it the domain is neither migrated nor \
         saved. -->\n\
         {memories}\
         <shmem name='{STAYS}-{name}' role='peer'>\n\
         \x20 <model type='ivshmem-plain'/>\n\
         \x20 <size unit='M'>1</size>\n\
         </shmem>\n\
         <channel type='unix'>\n\
         \x20 <source mode='bind' path='{port}'/>\n\
         \x20 <target type='virtio' name='{PORT_NAME}'/>\n\
         </channel>\n\
         {maps}"
    )
}

/// A size as QEMU has it, MiB if no unit is said.
fn in_mib(text: &str) -> anyhow::Result<u64> {
    let (number, unit) = match text.find(|letter: char| !letter.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "M"),
    };
    let number: u64 = number
        .parse()
        .with_context(|| format!("{text:?} is not a size: use a number and K, M, G or T"))?;
    let bytes = match unit {
        "B" | "b" => Some(number),
        "K" | "k" => number.checked_mul(1 << 10),
        "M" | "m" => number.checked_mul(1 << 20),
        "G" | "g" => number.checked_mul(1 << 30),
        "T" | "t" => number.checked_mul(1 << 40),
        _ => bail!("{text:?} is not a size: use a number and K, M, G or T"),
    };
    let bytes = bytes.with_context(|| format!("{text:?} is more than 2^64 bytes"))?;
    ensure!(bytes > 0, "a machine needs memory: give QEMU -m with more than 0");
    Ok(bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> anyhow::Result<Option<String>> {
        let command: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        memory(&command, 256 << 20)
    }

    #[test]
    fn room_for_the_window_is_added_to_given_memory() {
        for (line, expected) in [
            ("qemu", Some("maxmem=2048M")),
            ("qemu -m 512 -smp 2", Some("512,maxmem=2048M")),
            ("qemu -m 4G", Some("4G,maxmem=6144M")),
            ("qemu -m size=1g,slots=2", Some("size=1g,slots=2,maxmem=3072M")),
            ("qemu -m 512,maxmem=8G", None),
        ] {
            assert_eq!(told(line).unwrap().as_deref(), expected, "{line}");
        }
        for wrong in ["qemu -m", "qemu -m much", "qemu -m 0", "qemu -m 99999999999T"] {
            assert!(told(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_guest_is_given_a_window_and_a_port() {
        let room =
            Room { memory: Some("maxmem=2G".into()), processors: Some("1,maxcpus=2".into()) };
        let words = words(&windows("/proc/self/fd/5", 1), "/run/a,b/port", room, (None, None));
        let line = words.join(" ");
        assert!(line.starts_with("-m maxmem=2G -smp 1,maxcpus=2 -object "), "{line}");
        assert!(line.contains("mem-path=/proc/self/fd/5,size=4194304,share=on"), "{line}");
        assert!(line.contains("memdev=omniverb-stays,master=off"), "{line}");
        assert!(line.contains("virtio-pmem-pci") && line.contains("name=omniverb.control"));
        assert!(line.contains("-chardev socket,id=omniverb-control,path=/run/a,,b/port,server"));
    }

    fn windows(path: &str, count: usize) -> Vec<Plugged> {
        (0..count).map(|_| Plugged { path: path.to_owned(), bytes: 4 << 20 }).collect()
    }

    #[test]
    fn there_is_a_place_for_every_window() {
        for count in [1, 3, 5, 6, 35, 36, 61] {
            let all = windows("/proc/self/fd/5", count);
            let line = words(&all, "/run/port", Room::default(), (None, None)).join(" ");
            assert_eq!(bytes(&all), count as u64 * (4 << 20));
            assert_eq!(line.matches("virtio-pmem-pci").count(), count);
            let bridges = count.saturating_sub(5).div_ceil(30);
            assert_eq!(line.matches("-device pci-bridge").count(), bridges, "{line}");
            for number in 1..count {
                let device = format!("id=omniverb-{number},memdev=omniverb-pair{number}");
                assert!(line.contains(&device), "{number}: {line}");
            }
        }
    }

    #[test]
    fn later_windows_have_buses_and_a_monitor() {
        let all = windows("/proc/self/fd/5", 3);
        for (first, last, buses) in [(3, 4, 1), (3, 30, 1), (3, 31, 2), (31, 60, 1), (1, 60, 2)] {
            let later = Later { monitor: "/run/a,b/monitor", first, last };
            let line = words(&all, "/run/port", Room::default(), (Some(later), None)).join(" ");
            assert_eq!(line.matches("pci-bridge,id=omniverb-later").count(), buses, "{line}");
            for number in first..=last {
                assert!(
                    line.contains(&format!("id={},", qemu_monitor::bus_id(number))),
                    "{number}"
                );
            }
            assert!(line.contains("path=/run/a,,b/monitor,server=on,wait=off"), "{line}");
            assert!(line.contains("-mon chardev=omniverb-monitor,mode=control"), "{line}");
        }
    }

    #[test]
    fn windows_that_are_mapped_have_a_device() {
        let all = windows("/proc/self/fd/5", 1);
        let maps = Some(Maps("/run/a,b/mapped"));
        let line = words(&all, "/run/port", Room::default(), (None, maps)).join(" ");
        assert!(line.contains("-chardev socket,id=omniverb-mapped,path=/run/a,,b/mapped -"));
        assert!(line.contains("-device vhost-user-test-device-pci,id=omniverb-mapped-here,"));
        let device = ",virtio-id=27,num_vqs=1,vq_size=64,config_size=16";
        assert!(line.ends_with(device), "{line}");
    }

    #[test]
    fn printed_options_are_quoted_for_a_shell() {
        assert_eq!(quoted("memory-backend-file,size=4K"), "memory-backend-file,size=4K");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $1"), r"'it'\''s $1'");
    }

    #[test]
    fn libvirt_gets_the_same_options() {
        let mut windows = windows("/run/a&b/window", 1);
        windows[0].bytes = 64 << 20;
        let maps = Maps("/run/a&b/mapped");
        let text = xml("one", &windows, "/run/a&b/port", 4 << 30, Some(maps));
        let without = xml("one", &windows, "/run/a&b/port", 4 << 30, None);
        assert!(text.starts_with(&without) && !without.contains("qemu:"));
        for part in [
            "<path>/run/a&amp;b/window</path>",
            "<size unit='KiB'>65536</size>",
            "path='/run/a&amp;b/port'",
            "name='omniverb.control'",
            "<shmem name='omniverb-stays-one' role='peer'>",
            "<maxMemory slots='4' unit='KiB'>6291456<",
            "<qemu:arg value='socket,id=omniverb-mapped,path=/run/a&amp;b/mapped'/>",
            "<qemu:arg value='vhost-user-test-device-pci,",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
