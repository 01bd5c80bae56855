//! Decides which vNIC a container gets, by ordered rules about its network namespace.
//!
//! The first rule that matches decides. All conditions of a rule have to hold; those about an
//! address, a bridge and an interface have to hold of one interface.
//!
//! A platform sets a container up in steps, in whatever order: an interface, its bridge, addresses.
//! Until a process asks, rules wait for what an earlier step would decide otherwise.

use super::address_prefix::Prefix;
use super::rule_virtual_address::VirtualAddress;
use crate::allowed_processes::is_below;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};

/// Budget: rules of a configuration, each of which may be tried for each new namespace.
pub(crate) const RULES_MAX: usize = 1024;
/// Bytes of a pattern or a template.
const TEXT_BYTES_MAX: usize = 255;

/// One `[[container]]` table: which containers it is about, and what vNIC they get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerRule {
    /// An address of the interface is in this prefix.
    pub address: Option<Prefix>,
    /// The other end of the interface is a port of this bridge; `*` stands for any letters.
    pub bridge: Option<String>,
    /// The name of the interface in the container; `*` stands for any letters.
    pub interface: Option<String>,
    /// The first process that opens the device is in this cgroup or below.
    pub cgroup: Option<String>,
    /// The name of the network namespace; `*` stands for any letters.
    pub namespace: Option<String>,
    /// The tenant of the vNIC.
    pub tenant: Option<String>,
    /// Names of policies of the vNIC.
    pub policies: Vec<String>,
    /// The address of the vNIC in the virtual network of its tenant.
    pub virtual_address: Option<VirtualAddress>,
    /// The name of the vNIC, with `{namespace}`, `{interface}` and `{address}` in it; by default
    /// the one that the daemon gives.
    pub name: Option<String>,
}

/// What rules look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Container {
    /// The name of its namespace.
    pub(crate) namespace: Option<String>,
    /// The cgroup of its first process; `None`: there was none yet.
    pub(crate) cgroup: Option<String>,
    pub(crate) interfaces: Vec<Interface>,
}

impl Container {
    /// Those of all its interfaces.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.interfaces.iter().flat_map(|interface| &interface.addresses).copied().collect()
    }
}

/// An interface of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Packets can pass.
    pub(crate) is_up: bool,
    pub(crate) bridge: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Interface {
    /// Whether it has any address but those that the kernel gives to each interface.
    fn has_given_address(&self) -> bool {
        self.addresses.iter().any(is_given)
    }
}

/// When rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The container has come or changed, and its platform may still be at work.
    Change,
    /// A process waits for its device: what there is decides.
    Process,
}

/// What rules say of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// This rule decides; the interface that it matched, if it is about one.
    Matched(&'a ContainerRule, Option<&'a Interface>),
    /// It depends on what is not there yet: on the cgroup, which is known when the first process
    /// comes, on an interface that is down, or on its address.
    Undecided,
    /// No rule is about it.
    Unmatched,
}

/// What rules say of a container.
pub(crate) fn decide<'a>(
    rules: &'a [ContainerRule],
    container: &'a Container,
    moment: Moment,
) -> Verdict<'a> {
    let waits = moment == Moment::Change;
    if waits && !container.interfaces.iter().any(|interface| interface.is_up) {
        return Verdict::Undecided;
    }
    for rule in rules {
        let is_named = rule.namespace.as_ref().is_none_or(|pattern| {
            container.namespace.as_ref().is_some_and(|name| matches(pattern, name))
        });
        if !is_named {
            continue;
        }
        let interface = match rule.matching_interface(container) {
            Some(interface) => interface,
            None if waits && rule.lacks_address(container) => return Verdict::Undecided,
            None => continue,
        };
        if waits && !rule.is_complete(container, interface) {
            return Verdict::Undecided;
        }
        match (&rule.cgroup, &container.cgroup) {
            (Some(_), None) => return Verdict::Undecided,
            (Some(above), Some(cgroup)) if !is_below(cgroup, above) => {}
            _ => return Verdict::Matched(rule, interface),
        }
    }
    Verdict::Unmatched
}

impl ContainerRule {
    /// The problem with the rule, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        let texts = [&self.bridge, &self.interface, &self.cgroup, &self.namespace, &self.name];
        if texts.into_iter().flatten().any(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX) {
            return Some(format!("texts have 1 to {TEXT_BYTES_MAX} bytes"));
        }
        let cgroup = self.cgroup.as_ref();
        if let Some(cgroup) =
            cgroup.filter(|path| !path.starts_with('/') || path.split('/').any(|part| part == ".."))
        {
            return Some(format!("{cgroup:?} is no path of a cgroup: it begins with a slash"));
        }
        let name = self.name.as_deref().unwrap_or_default();
        let plain = ["{namespace}", "{interface}", "{address}"]
            .iter()
            .fold(name.to_owned(), |text, word| text.replace(word, ""));
        plain.contains(['{', '}']).then(|| {
            format!("the name {name:?} may have {{namespace}}, {{interface}} and {{address}} in it")
        })
    }

    fn is_about_interface(&self) -> bool {
        self.address.is_some() || self.bridge.is_some() || self.interface.is_some()
    }

    /// The interface that it matches; within `None`: it is about none. `None`: it does not match.
    fn matching_interface<'a>(&self, container: &'a Container) -> Option<Option<&'a Interface>> {
        if !self.is_about_interface() {
            return Some(None);
        }
        let matching = container.interfaces.iter().filter(|interface| {
            let has_address = self.address.is_none_or(|prefix| {
                interface.addresses.iter().any(|address| prefix.contains(*address))
            });
            has_address && self.fits_apart_from_address(interface)
        });
        // The first that is up, else the first.
        matching.min_by_key(|interface| !interface.is_up).map(Some)
    }

    fn fits_apart_from_address(&self, interface: &Interface) -> bool {
        let fits = |pattern: &Option<String>, text: Option<&String>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| matches(pattern, text)))
        };
        fits(&self.bridge, interface.bridge.as_ref())
            && fits(&self.interface, Some(&interface.name))
    }

    /// Whether it would match if an interface got an address that it has not got yet.
    fn lacks_address(&self, container: &Container) -> bool {
        let mut interfaces = container.interfaces.iter();
        self.address.is_some()
            && interfaces.any(|interface| {
                !interface.has_given_address() && self.fits_apart_from_address(interface)
            })
    }

    /// Whether the interface that it has matched is up, with an address if the name needs one.
    fn is_complete(&self, container: &Container, matched: Option<&Interface>) -> bool {
        let names_address = self.name.as_ref().is_some_and(|name| name.contains("{address}"));
        let interface = matched.or(container.interfaces.first());
        let needs_own = self.virtual_address == Some(VirtualAddress::Own);
        matched.is_none_or(|interface| interface.is_up)
            && (!names_address || interface.is_some_and(Interface::has_given_address))
            && (!needs_own || self.own_address(container, matched).is_some())
    }

    /// The IPv4 address of the interface that it has matched: one of those that it is about.
    pub(crate) fn own_address(
        &self,
        container: &Container,
        matched: Option<&Interface>,
    ) -> Option<Ipv4Addr> {
        let interface = matched.or(container.interfaces.first())?;
        let fits = |address: &IpAddr| self.address.is_none_or(|prefix| prefix.contains(*address));
        interface.addresses.iter().filter(|address| fits(address)).find_map(|address| match address
        {
            IpAddr::V4(four) if !four.is_loopback() => Some(*four),
            _ => None,
        })
    }

    /// The name that it gives; `None`: it names none, or there is nothing to put into it.
    pub(crate) fn name_for(
        &self,
        container: &Container,
        interface: Option<&Interface>,
    ) -> Option<String> {
        let template = self.name.as_deref()?;
        let interface = interface.or(container.interfaces.first());
        let address = interface.and_then(|interface| {
            let in_prefix =
                |address: &&IpAddr| self.address.is_none_or(|prefix| prefix.contains(**address));
            let addresses = interface.addresses.iter().filter(in_prefix);
            addresses.min_by_key(|address| !is_given(address)).map(IpAddr::to_string)
        });
        let values = [
            ("{namespace}", container.namespace.clone()),
            ("{interface}", interface.map(|interface| interface.name.clone())),
            ("{address}", address),
        ];
        let mut name = template.to_owned();
        for (word, value) in values {
            if name.contains(word) {
                name = name.replace(word, &value?);
            }
        }
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || "._-@".contains(sign);
        Some(name.chars().map(|sign| if is_sign(sign) { sign } else { '-' }).collect())
    }
}

/// Whether an address is none of those that the kernel gives to each interface.
fn is_given(address: &IpAddr) -> bool {
    !matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// Whether a text fits a pattern, in which `*` stands for any letters, also none.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<ContainerRule> {
        serde_json::from_str(text).unwrap()
    }

    fn interface(name: &str, bridge: Option<&str>, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        let bridge = bridge.map(str::to_owned);
        Interface { name: name.into(), is_up: true, bridge, addresses }
    }

    fn tenant<'a>(rules: &'a [ContainerRule], container: &'a Container) -> &'a str {
        tenant_at(Moment::Process, rules, container)
    }

    fn tenant_at<'a>(
        moment: Moment,
        rules: &'a [ContainerRule],
        container: &'a Container,
    ) -> &'a str {
        match decide(rules, container, moment) {
            Verdict::Matched(rule, _) => rule.tenant.as_deref().unwrap(),
            Verdict::Undecided => "undecided",
            Verdict::Unmatched => "unmatched",
        }
    }

    #[test]
    fn the_first_rule_whose_conditions_all_hold_decides() {
        let rules = rules(
            r#"[{"bridge": "br-blue", "address": "10.1.0.0/16", "tenant": "blue"},
            {"interface": "eth*", "address": "fd00::/8", "tenant": "green"},
            {"namespace": "red-*", "tenant": "red"}]"#,
        );
        let with = |interfaces: &[Interface], namespace: Option<&str>| Container {
            namespace: namespace.map(str::to_owned),
            cgroup: None,
            interfaces: interfaces.to_vec(),
        };
        let blue = interface("eth0", Some("br-blue"), &["10.1.2.3"]);
        assert_eq!(tenant(&rules, &with(std::slice::from_ref(&blue), Some("red-1"))), "blue");
        // All of one interface.
        let apart =
            [interface("a", Some("br-blue"), &["10.2.0.1"]), interface("b", None, &["10.1.0.1"])];
        assert_eq!(tenant(&rules, &with(&apart, None)), "unmatched");
        assert_eq!(tenant(&rules, &with(&apart, Some("red-7"))), "red");
        let six = interface("eth1", None, &["10.9.0.1", "fd12::1"]);
        assert_eq!(tenant(&rules, &with(&[six], None)), "green");
        assert_eq!(tenant(&rules, &with(&[], None)), "unmatched");
        assert_eq!(decide(&[], &with(&[blue], None), Moment::Process), Verdict::Unmatched);
    }

    #[test]
    fn rules_wait_for_what_a_platform_has_not_set_up_yet() {
        let rules = rules(
            r#"[{"address": "10.1.0.66", "tenant": "red"},
            {"bridge": "br-blue", "tenant": "blue", "name": "blue-{address}"},
            {"bridge": "br-green", "address": "10.0.0.0/8", "tenant": "green"},
            {"tenant": "rest"}]"#,
        );
        let at = |moment, interface: Interface| {
            let container = Container { interfaces: vec![interface], ..Container::default() };
            tenant_at(moment, &rules, &container).to_owned()
        };
        let down = |interface: Interface| Interface { is_up: false, ..interface };
        let (blue, green) = (Some("br-blue"), Some("br-green"));
        for (found, later, at_once) in [
            (down(interface("eth0", blue, &[])), "undecided", "blue"),
            (down(interface("eth0", blue, &["10.1.0.66"])), "undecided", "red"),
            (down(interface("eth0", None, &["10.1.0.7"])), "undecided", "rest"),
            (interface("eth0", blue, &[]), "undecided", "blue"),
            (interface("eth0", blue, &["fe80::1"]), "undecided", "blue"),
            (interface("eth0", blue, &["10.1.0.66"]), "red", "red"),
            (interface("eth0", blue, &["fe80::1", "10.1.0.7"]), "blue", "blue"),
            (interface("eth0", green, &["fd00::1"]), "rest", "rest"),
            (interface("eth0", None, &["10.1.0.7"]), "rest", "rest"),
        ] {
            assert_eq!(at(Moment::Change, found.clone()), later, "{found:?}");
            assert_eq!(at(Moment::Process, found.clone()), at_once, "{found:?}");
        }
        // Without interfaces there is nothing to wait for but a process.
        assert_eq!(tenant_at(Moment::Change, &rules, &Container::default()), "undecided");
        assert_eq!(tenant(&rules, &Container::default()), "rest");
        // An interface that is up decides beside one that is down.
        let two = vec![
            down(interface("eth0", blue, &["10.1.0.7"])),
            interface("eth1", blue, &["10.1.0.8"]),
        ];
        let container = Container { interfaces: two, ..Container::default() };
        let Verdict::Matched(rule, found) = decide(&rules, &container, Moment::Change) else {
            panic!()
        };
        assert_eq!(rule.name_for(&container, found).unwrap(), "blue-10.1.0.8");
    }

    #[test]
    fn a_cgroup_is_known_with_the_first_process() {
        let rules = rules(
            r#"[{"cgroup": "/kubepods.slice", "interface": "eth0", "tenant": "pods"},
            {"tenant": "others"}]"#,
        );
        let mut container =
            Container { interfaces: vec![interface("eth0", None, &[])], ..Container::default() };
        assert_eq!(tenant(&rules, &container), "undecided");
        container.cgroup = Some("/kubepods.slice/pod7".into());
        assert_eq!(tenant(&rules, &container), "pods");
        container.cgroup = Some("/kubepods.slice2".into());
        assert_eq!(tenant(&rules, &container), "others");
        // Where something else does not fit already, nothing is undecided.
        container = Container::default();
        assert_eq!(tenant(&rules, &container), "others");
    }

    #[test]
    fn patterns_stand_for_any_letters() {
        for (pattern, text, fits) in [
            ("br-blue", "br-blue", true),
            ("br-blue", "br-blue2", false),
            ("br-*", "br-", true),
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("ab*ba", "aba", false),
            ("*x*", "axb", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn names_are_made_of_what_was_found() {
        let rules = rules(
            r#"[{"address": "10.1.0.0/16", "name": "blue-{address}-{interface}"},
            {"name": "x-{namespace}"}, {"name": "{colour}"}, {"cgroup": "a/b"}]"#,
        );
        let found = interface("eth0", None, &["fe80::1", "fd00::1", "10.1.2.3"]);
        let container = Container { interfaces: vec![found], ..Container::default() };
        let Verdict::Matched(rule, interface) = decide(&rules, &container, Moment::Process) else {
            panic!()
        };
        assert_eq!(rule.name_for(&container, interface).unwrap(), "blue-10.1.2.3-eth0");
        assert_eq!(rules[1].name_for(&container, None), None, "it has no name");
        let named = Container { namespace: Some("a b".into()), ..container };
        assert_eq!(rules[1].name_for(&named, None).unwrap(), "x-a-b");
        assert!(rules[2].problem().unwrap().contains("{namespace}"));
        assert!(rules[3].problem().unwrap().contains("cgroup"));
        assert_eq!((rules[0].problem(), rules[1].problem()), (None, None));
    }
}
