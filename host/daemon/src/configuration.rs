//! Reads the configuration file.
//!
//! Every key is optional; an unknown one is an error, so that a misspelt quota is not silently no
//! quota.

use crate::allow_configuration::AllowTable;
use crate::vnic_configuration::{self, VnicTable};
use anyhow::{Context, bail};
use omniverb_control::{
    Allow, Configured, ContainerRule, Level, ObjectKind, ObjectSet, PolicyObject, Tenant, Totals,
    Undescribed,
};
use omniverb_formats::address_range::{MOST, Range};
use omniverb_session::limits::STATISTICS_SLOTS;
use omniverb_tenancy::{Adoption, Datapath, Limits, Policy};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where root's configuration is if nothing else is said.
const SYSTEM_FILE: &str = "/etc/omniverb/omniverbd.toml";
/// Bytes of a configuration file: thousands of vNICs have their tables in it.
const BYTES_MAX: u64 = 16 << 20;
/// Nothing that a thread does in one turn takes a hundredth of it.
const WATCHDOG_SECONDS: u32 = 5;

/// The least `memory_max_mib`.
const LEAST_MIB: u64 = Totals::LEAST >> 20;

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Configuration {
    #[serde(deserialize_with = "optional_level")]
    pub(crate) log_level: Option<Level>,
    pub(crate) idle_exit_seconds: Option<u64>,
    consent_seconds: Option<u32>,
    resume_seconds: Option<u32>,
    pub(crate) audit: Option<bool>,
    pub(crate) carried_queue_pairs: Option<bool>,
    sockets: Option<bool>,
    sockets_light: Vec<Light>,
    allow: Option<AllowTable>,
    watchdog_seconds: Option<u32>,
    memory_max_mib: Option<u64>,
    #[serde(deserialize_with = "vnic_configuration::optional_datapath")]
    datapath: Option<Datapath>,
    #[serde(deserialize_with = "vnic_configuration::optional_adoption")]
    adoption: Option<Adoption>,
    isolate: Option<bool>,
    pub(crate) underlay_namespace: Option<PathBuf>,
    pub(crate) metrics: Option<SocketAddr>,
    container: Vec<ContainerRule>,
    tenant: BTreeMap<String, Tenant>,
    policy: BTreeMap<String, PolicyObject>,
    vnic: VnicTable,
    process: Process,
}

/// Quotas of one process.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Process {
    queue_pairs: Option<usize>,
    memory_regions: Option<usize>,
    links: Option<usize>,
    grants: Option<usize>,
}

/// Addresses to which connections are light.
#[derive(Clone, Copy, Debug)]
struct Light(Range);

impl<'de> Deserialize<'de> for Light {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Light, D::Error> {
        let text = String::deserialize(from)?;
        let range = text.parse().map_err(|why| D::Error::custom(format!("{text:?} is {why}")));
        range.map(Light)
    }
}

/// A log level by its name.
fn level(name: &str) -> Result<Level, String> {
    match name {
        "error" => Ok(Level::Error),
        "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        "debug" => Ok(Level::Debug),
        _ => Err(format!("no log level is called {name:?}: use error, warning, info or debug")),
    }
}

fn optional_level<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Level>, D::Error> {
    level(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// An address where metrics are served.
///
/// # Errors
/// It is no loopback address: metrics name tenants, and each process that connects reads them.
pub(crate) fn metrics_address(address: SocketAddr) -> Result<SocketAddr, String> {
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "metrics are served at loopback addresses only, such as 127.0.0.1:9469, not at \
             {address}; for other hosts use a proxy that asks for a password"
        )),
    }
}

/// The path of the underlay's network namespace.
///
/// # Errors
/// The daemon may be started in any folder, and a path in /proc is of a process.
pub(crate) fn underlay_namespace(path: &Path) -> Result<(), String> {
    match path.is_absolute() && !path.starts_with("/proc") {
        true => Ok(()),
        false => Err(format!(
            "underlay_namespace is the absolute path of a network namespace that stays, as \
             /run/netns/underlay, not {}",
            path.display()
        )),
    }
}

/// The text of a file. A pipe or a device might never end, or not even open.
fn text_of(path: &Path) -> anyhow::Result<String> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        bail!("it is not a regular file");
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        bail!("it has more than {} MiB", BYTES_MAX >> 20);
    }
    Ok(text)
}

/// The line on which an object's table begins.
fn line_of_table(text: &str, kind: ObjectKind, name: &str) -> usize {
    let word = kind.word();
    if let (ObjectKind::Container, Ok(number)) = (kind, name.parse::<usize>()) {
        let is_table = |line: &&(usize, &str)| line.1.trim_start().starts_with("[[container]]");
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).collect();
        let found = lines.iter().filter(is_table).nth(number.saturating_sub(1));
        return found.map_or(1, |(line, _)| *line);
    }
    let heads = [format!("[{word}.{name}]"), format!("[{word}.{name:?}]")];
    let is_head = |line: &str| heads.iter().any(|head| line.trim_start().starts_with(head));
    1 + text.lines().position(is_head).unwrap_or(0)
}

impl Configuration {
    /// Reads `file`, or root's default file if there is one.
    pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<Configuration> {
        let system = Path::new(SYSTEM_FILE);
        let file = match file {
            Some(file) => file,
            None if geteuid().is_root() && system.exists() => system,
            None => return Ok(Configuration::default()),
        };
        let text = text_of(file).with_context(|| {
            format!("cannot read the configuration file {} (see --config)", file.display())
        })?;
        Configuration::parse(&text, &file.display().to_string())
    }

    pub(crate) fn parse(text: &str, name: &str) -> anyhow::Result<Configuration> {
        let configuration: Configuration = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
            let problem = error.message().lines().next().unwrap_or_default().to_owned();
            anyhow::anyhow!("{name}:{line}: {problem}")
        })?;
        configuration.check(text, name)?;
        Ok(configuration)
    }

    /// Values that are numbers but make no sense.
    fn check(&self, text: &str, name: &str) -> anyhow::Result<()> {
        let line_of = |key: &str| {
            1 + text.lines().position(|line| line.trim_start().starts_with(key)).unwrap_or(0)
        };
        if let Err(error) = self.configured().objects.check() {
            let line = line_of_table(text, error.kind, &error.name);
            bail!("{name}:{line}: {error}");
        }
        let (vnic, process) = (&self.vnic.quotas, &self.process);
        for (key, value) in [
            ("processes", vnic.processes),
            ("queue_pairs", vnic.queue_pairs),
            ("queue_pairs", process.queue_pairs),
            ("memory_regions", vnic.memory_regions),
            ("memory_regions", process.memory_regions),
            ("links", vnic.links),
            ("links", process.links),
        ] {
            if value == Some(0) {
                bail!("{name}:{}: {key} must be at least 1", line_of(key));
            }
        }
        if self.memory_max_mib.is_some_and(|mebibytes| mebibytes < LEAST_MIB) {
            let line = line_of("memory_max_mib");
            bail!("{name}:{line}: memory_max_mib must be at least {LEAST_MIB}");
        }
        if let Some(Err(problem)) = self.metrics.map(metrics_address) {
            bail!("{name}:{}: {problem}", line_of("metrics"));
        }
        if let Some(Err(problem)) = self.underlay_namespace.as_deref().map(underlay_namespace) {
            bail!("{name}:{}: {problem}", line_of("underlay_namespace"));
        }
        if self.sockets_light.len() > MOST {
            let line = line_of("sockets_light");
            bail!("{name}:{line}: sockets_light can have at most {MOST} ranges");
        }
        if process.queue_pairs.is_some_and(|count| count > STATISTICS_SLOTS) {
            let line = line_of("queue_pairs");
            bail!("{name}:{line}: a process can have at most {STATISTICS_SLOTS} queue pairs");
        }
        Ok(())
    }

    /// Whether ends of TCP connections are brought together, at a place of their own: unless that
    /// is not wanted, or cannot be and was not asked for. The broker does not look at cgroups.
    pub(crate) fn has_sockets(&self) -> bool {
        let names_cgroups = self.allow().is_some_and(|allow| !allow.cgroups.is_empty());
        self.sockets.unwrap_or(!names_cgroups)
    }

    /// To which addresses connections are light.
    pub(crate) fn light(&self) -> Vec<Range> {
        self.sockets_light.iter().map(|light| light.0).collect()
    }

    /// The processes that may use the tenants' socket.
    pub(crate) fn allow(&self) -> Option<Allow> {
        self.allow.as_ref().map(AllowTable::allow)
    }

    /// The policy of vNICs that no table is about.
    fn general(&self) -> Policy {
        Policy {
            datapath: self.datapath.unwrap_or_default(),
            adoption: self.adoption.unwrap_or_default(),
            ..Policy::default()
        }
    }

    /// Tenants, policies and vNICs, and what holds without them.
    pub(crate) fn configured(&self) -> Configured {
        let objects = ObjectSet {
            tenant: self.tenant.clone(),
            policy: self.policy.clone(),
            vnic: self.vnic.named.clone(),
            address: BTreeMap::new(),
            container: self.container.clone(),
            undescribed: match self.isolate {
                Some(true) => Undescribed::Isolated,
                _ => Undescribed::Served,
            },
        };
        Configured { general: self.general(), objects }
    }

    /// How long a thread may be at one and the same thing until that is said, if at all.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        let seconds = self.watchdog_seconds.unwrap_or(WATCHDOG_SECONDS);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// The memory that the daemon may use.
    pub(crate) fn memory(&self) -> Totals {
        let bytes = self.memory_max_mib.map(|mebibytes| mebibytes.saturating_mul(1 << 20));
        bytes.map_or_else(Totals::of_machine, Totals::new)
    }

    /// The quotas it asks for.
    pub(crate) fn limits(&self) -> Limits {
        let default = Limits::default();
        let (vnic, process) = (&self.vnic.quotas, &self.process);
        let nanoseconds = |seconds: u32| u64::from(seconds) * 1_000_000_000;
        Limits {
            consent_time_ns: self.consent_seconds.map_or(default.consent_time_ns, nanoseconds),
            resume_window_ns: self.resume_seconds.map_or(default.resume_window_ns, nanoseconds),
            sessions_per_vnic: vnic.processes.unwrap_or(default.sessions_per_vnic),
            qps_per_vnic: vnic.queue_pairs.unwrap_or(default.qps_per_vnic),
            mrs_per_vnic: vnic.memory_regions.unwrap_or(default.mrs_per_vnic),
            links_per_vnic: vnic.links.unwrap_or(default.links_per_vnic),
            datagram_links_per_neighbour: vnic
                .datagram_links_per_neighbour
                .unwrap_or(default.datagram_links_per_neighbour),
            probes_per_vnic: vnic.probes.unwrap_or(default.probes_per_vnic),
            qps_per_session: process.queue_pairs.unwrap_or(default.qps_per_session),
            mrs_per_session: process.memory_regions.unwrap_or(default.mrs_per_session),
            links_per_session: process.links.unwrap_or(default.links_per_session),
            grants_per_session: process.grants.unwrap_or(default.grants_per_session),
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn quotas_are_taken_over() {
        let text = "log_level = \"debug\"\nconsent_seconds = 0\nresume_seconds = 7\n\
                    watchdog_seconds = 0\nmemory_max_mib = 1024\n\
                    [vnic]\nqueue_pairs = 5\n[process]\nlinks = 3\n";
        let configuration = Configuration::parse(text, "x").unwrap();
        assert_eq!(configuration.log_level, Some(Level::Debug));
        let limits = configuration.limits();
        assert_eq!((limits.qps_per_vnic, limits.links_per_session), (5, 3));
        assert_eq!(configuration.watchdog(), None);
        assert_eq!(configuration.memory(), Totals::new(1 << 30));
        assert_eq!(Configuration::default().memory(), Totals::of_machine());
        let seconds = Configuration::default().watchdog();
        assert_eq!(seconds, Some(Duration::from_secs(5)));
        assert_eq!((limits.consent_time_ns, limits.resume_window_ns), (0, 7_000_000_000));
        assert_eq!(limits.mrs_per_vnic, Limits::default().mrs_per_vnic);
    }

    #[test]
    fn vnics_have_policies() {
        let text = "adoption = \"trusting\"\ndatapath = \"forwarded\"\n\
                    [vnic]\nlinks = 7\n[vnic.host]\n\
                    datapath = \"direct\"\n[vnic.\"net-5\"]\nrate = \"300mbit\"\n\
                    burst = \"128k\"\nadoption = \"off\"\n[vnic.\"net-6\"]\nrate = \"8mbit\"\n\
                    faults = \"loss=2%\"\n";
        let configuration = Configuration::parse(text, "x").unwrap();
        assert_eq!(configuration.limits().links_per_vnic, 7);
        let Configured { general, objects } = configuration.configured();
        assert_eq!((general.datapath, general.adoption), (Datapath::Forwarded, Adoption::Trusting));
        let text = serde_json::to_value(&objects.vnic["net-5"]).unwrap();
        assert_eq!(text["rate"], "300000000bit");
        assert_eq!((&text["burst"], &text["adoption"]), (&"131072".into(), &"off".into()));
        assert_eq!(objects.vnic["host"].datapath.map(|path| path.0), Some(Datapath::Direct));
        assert_eq!(objects.vnic["net-6"].faults.unwrap().0.unwrap().loss, 20_000);
        assert_eq!(Policy::default().adoption, Adoption::Trusting);
        assert_eq!(Configuration::default().configured().objects, ObjectSet::default());
    }

    #[test]
    fn objects_name_each_other() {
        let text = "[tenant.blue]\nadoption = \"exact\"\n[policy.gold]\nrate = \"5gbit\"\n\
                    mode = \"each\"\n[vnic.web]\ntenant = \"blue\"\npolicies = [\"gold\"]\n\
                    attach = \"/run/netns/web\"\n";
        let objects = Configuration::parse(text, "x").unwrap().configured().objects;
        assert_eq!(objects.vnic["web"].policies, ["gold"]);
        let rule = "[[policy.shy.rule]]\ndirection = \"ingress\"\naction = \"deny\"\n\
                    operations = [\"read\", \"write\"]\nfrom = \"10.0.0.0/8\"\nport = 7471\n";
        let objects = Configuration::parse(rule, "x").unwrap().configured().objects;
        let written = serde_json::to_value(&objects.policy["shy"]).unwrap();
        assert_eq!(written["rule"][0], "ingress deny read,write from 10.0.0.0/8 port 7471");
        for (more, line, word) in [
            ("colour = \"red\"\n", 7, "colour"),
            ("priority = -1\n", 7, "-1"),
            ("to = \"any\"\n", 1, "from"),
        ] {
            let error =
                Configuration::parse(&format!("{rule}{more}"), "x").unwrap_err().to_string();
            assert!(error.starts_with(&format!("x:{line}: ")) && error.contains(word), "{error}");
        }
        for (text, line, word) in [
            ("\n[vnic.web]\ntenant = \"red\"\n", 2, "no tenant \"red\""),
            ("\n\n[vnic.\"web\"]\npolicies = [\"gold\"]\n", 3, "no policy \"gold\""),
            ("[policy.gold]\nburst = \"64k\"\n", 1, "needs a rate"),
            ("[policy.gold]\nrate = \"5gbit\"\nmode = \"sum\"\n", 3, "neither each nor shared"),
            ("[tenant.blue]\nburst = \"64k\"\n", 1, "needs a rate"),
            ("[policy.gold]\nrules = []\n", 2, "rules"),
            ("[policy.gold]\nrule = [\"ingress deny reads\"]\n", 2, "no operation"),
            ("[policy.gold]\n\n[[policy.gold.rule]]\ndirection = \"both\"\n", 4, "no direction"),
            ("[tenant.blue]\ncolour = 1\n", 2, "colour"),
            ("[tenant.\"a b\"]\n", 1, "letters"),
            ("[[container]]\n\n[[container]]\ntenant = \"red\"\n", 3, "no tenant \"red\""),
            ("[[container]]\naddress = \"10.1.2.3/16\"\n", 2, "behind its prefix"),
            ("[[container]]\nname = \"{colour}\"\n", 1, "{address}"),
            ("[[container]]\ncolour = 1\n", 2, "colour"),
            ("[container]\n", 1, "sequence"),
        ] {
            let error = Configuration::parse(text, "x").unwrap_err().to_string();
            assert!(error.starts_with(&format!("x:{line}: ")) && error.contains(word), "{error}");
        }
    }

    #[test]
    fn allowed_processes_are_configured() {
        let text = "audit = true\n[allow]\nusers = [1000, \"root\"]\ngroups = [7]\n\
                    cgroups = [\"/kubepods.slice\"]\n";
        let configuration = Configuration::parse(text, "x").unwrap();
        assert_eq!(configuration.audit, Some(true));
        let allow = configuration.allow().unwrap();
        assert_eq!((allow.people.users, allow.people.groups), (vec![1000, 0], vec![7]));
        assert_eq!(allow.cgroups, ["/kubepods.slice"]);
        assert_eq!(Configuration::default().allow(), None);
        // The broker of sockets does not know of cgroups.
        assert!(!configuration.has_sockets() && Configuration::default().has_sockets());
        let asked_for = Configuration::parse(&format!("sockets = true\n{text}"), "x").unwrap();
        assert!(asked_for.has_sockets());
    }

    #[test]
    fn ranges_of_light_connections_are_taken_over() {
        let text = "sockets_light = [\"127.0.0.1:6379\", \"[fd00::/8]:7-9\"]\n";
        let ranges = Configuration::parse(text, "x").unwrap().light();
        let ranges: Vec<String> = ranges.iter().map(Range::to_string).collect();
        assert_eq!(ranges, ["127.0.0.1/32:6379", "[fd00::/8]:7-9"]);
        let many = |count| format!("\nsockets_light = [{}]", "\":5\",".repeat(count));
        assert!(Configuration::parse(&many(MOST), "x").is_ok());
        let error = Configuration::parse(&many(MOST + 1), "x").unwrap_err().to_string();
        assert!(error.starts_with("x:2: ") && error.contains("at most 64"), "{error}");
    }

    #[test]
    fn only_a_regular_file_of_some_length_is_read() {
        let error = |path: &Path| format!("{:#}", Configuration::load(Some(path)).unwrap_err());
        assert!(error(Path::new("/nosuch")).contains("/nosuch (see --config): No such file"));
        for other in ["/dev/zero", "/dev/null", "/tmp"] {
            assert!(error(Path::new(other)).ends_with("it is not a regular file"), "{other}");
        }
        let folder = std::env::temp_dir().join(format!("omniverbd-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
        assert!(error(&pipe).ends_with("it is not a regular file"));
        let long = folder.join("long");
        std::fs::write(&long, "#".repeat(BYTES_MAX as usize)).unwrap();
        assert!(Configuration::load(Some(&long)).is_ok());
        std::fs::write(&long, "#".repeat(BYTES_MAX as usize + 1)).unwrap();
        assert!(error(&long).ends_with("it has more than 16 MiB"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn faults_are_named_with_their_line() {
        for (text, line, word) in [
            ("\n\nqueue_pair = 1\n", 3, "queue_pair"),
            ("[vnic]\nlinks = -1\n", 2, "-1"),
            ("[vnic]\nlinks = \"many\"\n", 2, "string"),
            ("[vnic\n", 1, ""),
            ("log_level = \"loud\"\n", 1, "loud"),
            ("[process]\n\nqueue_pairs = 8193\n", 3, "8192"),
            ("[vnic]\nlinks = 0\n", 2, "at least 1"),
            ("\nmemory_max_mib = 511\n", 2, "at least 512"),
            ("\nmetrics = \"10.0.0.1:9469\"\n", 2, "loopback"),
            ("metrics = \"9469\"\n", 1, "socket address"),
            ("datapath = \"fast\"\n", 1, "fast"),
            ("[vnic]\n\nlink = 3\n", 3, "link"),
            ("adoption = \"on\"\n", 1, "exact, trusting and off"),
            ("[vnic.host]\nadoption = true\n", 2, "string"),
            ("[vnic.host]\nspeed = 3\n", 2, "speed"),
            ("[vnic.\"net-5\"]\nrate = \"300mb\"\n", 2, "300mb"),
            ("[vnic.\"net-5\"]\nburst = \"64k\"\n", 1, "rate"),
            ("[allow]\nusers = []\n", 1, "no user"),
            ("[allow]\n\nusers = [\"no such user\"]\n", 3, "no such user"),
            ("[allow]\ncgroups = [\"a\"]\n", 2, "cgroup"),
            ("\nsockets_light = \"10.0.0.0/8\"\n", 2, "sequence"),
            ("\nsockets_light = [\"10.0.0.1\", \"10.0.0.1/8\"]\n", 2, "behind its prefix"),
            ("\nsockets_light = []\nsockets_light = []\n", 3, "duplicate"),
            ("[vnic.host]\nrate = \"8mbit\"\nfaults = \"loss=101%\"\n", 3, "100%"),
        ] {
            let error = Configuration::parse(text, "x.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("x.toml:{line}: ")), "{text:?}: {error}");
            assert!(error.contains(word) && error.lines().count() == 1, "{text:?}: {error}");
        }
    }
}
