//! Reads and writes rules as text: `ingress deny read,write from 10.0.0.0/8 port 7471 priority 10`.
//!
//! Fields come in this order. Peer, port and priority may be left out. An unknown word is an error:
//! a rule that says less than was meant would allow too much.

use super::rule::{DEFAULT_PRIORITY, Direction, PeerMatch, Prefix, Rule, RuleAction};
use omniverb_terms::Operations;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Bytes of the longest name of an object.
const NAME_BYTES_MAX: usize = 63;

impl Direction {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Direction::Egress => "egress",
            Direction::Ingress => "ingress",
        }
    }

    /// The word before the peer: `to` or `from`.
    #[must_use]
    pub fn peer_word(self) -> &'static str {
        match self {
            Direction::Egress => "to",
            Direction::Ingress => "from",
        }
    }
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(text: &str) -> Result<Direction, String> {
        match text {
            "egress" => Ok(Direction::Egress),
            "ingress" => Ok(Direction::Ingress),
            other => Err(format!("{other:?} is no direction: use egress or ingress")),
        }
    }
}

impl RuleAction {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            RuleAction::Accept => "accept",
            RuleAction::Deny => "deny",
        }
    }
}

impl FromStr for RuleAction {
    type Err = String;

    fn from_str(text: &str) -> Result<RuleAction, String> {
        match text {
            "accept" => Ok(RuleAction::Accept),
            "deny" => Ok(RuleAction::Deny),
            other => Err(format!("{other:?} is no action: use accept or deny")),
        }
    }
}

/// The operations of words that are separated by commas.
///
/// # Errors
/// The word that is no operation.
pub fn operations<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Operations, String> {
    let mut all = Operations::NONE;
    for word in words {
        let known = Operations::WORDS.iter().find(|(known, _)| *known == word);
        let operation = match (word, known) {
            ("all", _) => Operations::ALL,
            (_, Some((_, operation))) => *operation,
            _ => {
                let known: Vec<&str> = Operations::WORDS.iter().map(|(word, _)| *word).collect();
                let known = known.join(", ");
                return Err(format!("{word:?} is no operation: use all, or some of {known}"));
            }
        };
        all = all.with(operation);
    }
    if all.is_empty() { Err("a rule names one operation at least".into()) } else { Ok(all) }
}

impl FromStr for PeerMatch {
    type Err = String;

    /// `any`, `ADDRESS`, `PREFIX/BITS`, `vnic NAME` or `policy NAME`.
    fn from_str(text: &str) -> Result<PeerMatch, String> {
        let mut words = text.split_ascii_whitespace();
        let peer = take_peer(&mut words)?;
        match words.next() {
            Some(more) => Err(format!("{more:?} behind the peer is not understood")),
            None => Ok(peer),
        }
    }
}

fn take_peer<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<PeerMatch, String> {
    let known = "use any, a prefix as 10.0.0.0/8, vnic NAME or policy NAME";
    let word = words.next().ok_or_else(|| format!("the peer is missing: {known}"))?;
    match word {
        "any" => return Ok(PeerMatch::Any),
        "vnic" => return name(words.next()).map(PeerMatch::Vnic),
        "policy" => return name(words.next()).map(PeerMatch::Policy),
        _ => {}
    }
    let (address, bits) = word.split_once('/').unzip();
    let parsed: Option<IpAddr> = address.unwrap_or(word).parse().ok();
    let address = parsed.ok_or_else(|| format!("{word:?} is no peer: {known}"))?.to_canonical();
    let width = if address.is_ipv4() { 32 } else { 128 };
    let is_number = |bits: &&str| bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits = match bits {
        Some(bits) => Some(bits).filter(is_number).and_then(|bits| bits.parse().ok()),
        None => Some(width),
    };
    bits.and_then(|bits| Prefix::new(address, bits))
        .map(PeerMatch::Prefix)
        .ok_or_else(|| format!("{word:?} is no prefix: bits behind the prefix must be zero"))
}

fn name(word: Option<&str>) -> Result<String, String> {
    let word = word.ok_or("the peer's name is missing")?;
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    match word.len() <= NAME_BYTES_MAX && word.bytes().all(is_sign) {
        true => Ok(word.to_owned()),
        false => Err(format!("{word:?} is no name")),
    }
}

fn number(what: &str, word: Option<&str>, least: u16) -> Result<u16, String> {
    let word = word.ok_or_else(|| format!("the {what} is missing"))?;
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let number = word.parse().ok().filter(|number| digits && *number >= least);
    number.ok_or_else(|| format!("{word:?} is no {what}: use {least} to 65535"))
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let mut words = text.split_ascii_whitespace().peekable();
        let missing = |what: &str| format!("the {what} is missing in rule {text:?}");
        let direction: Direction = words.next().ok_or_else(|| missing("direction"))?.parse()?;
        let action = words.next().ok_or_else(|| missing("action"))?.parse()?;
        let names = words.next().ok_or_else(|| missing("operation"))?;
        let mut rule = Rule {
            direction,
            action,
            operations: operations(names.split(','))?,
            peer: PeerMatch::Any,
            port: None,
            priority: DEFAULT_PRIORITY,
        };
        if words.next_if_eq(&direction.peer_word()).is_some() {
            rule.peer = take_peer(&mut words)?;
        }
        if words.next_if_eq(&"port").is_some() {
            rule.port = Some(number("port", words.next(), 1)?);
        }
        if words.next_if_eq(&"priority").is_some() {
            rule.priority = number("priority", words.next(), 0)?;
        }
        match words.next() {
            None => Ok(rule),
            Some(word) => {
                let peer = direction.peer_word();
                Err(format!(
                    "{word:?} in rule {text:?} is not understood: behind the operations come \
                     {peer} PEER, port PORT, priority NUMBER, in this order"
                ))
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl fmt::Display for PeerMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerMatch::Any => f.write_str("any"),
            PeerMatch::Prefix(prefix) => write!(f, "{prefix}"),
            PeerMatch::Vnic(name) => write!(f, "vnic {name}"),
            PeerMatch::Policy(name) => write!(f, "policy {name}"),
        }
    }
}

impl fmt::Display for Rule {
    /// The text that is read as this rule again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { direction, action, operations, peer, port, priority } = self;
        let (side, verb) = (direction.word(), action.word());
        write!(f, "{side} {verb} {operations} {} {peer}", direction.peer_word())?;
        if let Some(port) = port {
            write!(f, " port {port}")?;
        }
        if *priority != DEFAULT_PRIORITY {
            write!(f, " priority {priority}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_are_read_and_written() {
        for (text, written) in [
            ("ingress deny read", "ingress deny read from any"),
            ("egress accept all to any", "egress accept all to any"),
            ("ingress  deny write,read from 10.0.0.0/8", "ingress deny read,write from 10.0.0.0/8"),
            ("egress deny connect to fd00::1", "egress deny connect to fd00::1/128"),
            (
                "ingress accept connect from vnic web port 7471 priority 10",
                "ingress accept connect from vnic web port 7471 priority 10",
            ),
            ("egress deny send,all to policy gold", "egress deny all to policy gold"),
            ("ingress deny datagram priority 0", "ingress deny datagram from any priority 0"),
            ("ingress deny atomic priority 100", "ingress deny atomic from any"),
            ("ingress deny send from ::ffff:10.0.0.1", "ingress deny send from 10.0.0.1/32"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn unknown_words_are_refused() {
        for (text, word) in [
            ("", "the direction is missing"),
            ("both deny read", "no direction"),
            ("ingress", "the action is missing"),
            ("ingress drop read", "no action"),
            ("ingress deny", "the operation is missing"),
            ("ingress deny reads", "no operation"),
            ("ingress deny read,", "no operation"),
            ("ingress deny read to any", "\"to\" in rule"),
            ("egress deny read from any", "\"from\" in rule"),
            ("ingress deny read from", "the peer is missing"),
            ("ingress deny read from tenant blue", "no peer"),
            ("ingress deny read from vnic", "name is missing"),
            ("ingress deny read from vnic a/b", "no name"),
            ("ingress deny read from 10.0.0.1/8", "no prefix"),
            ("ingress deny read from 10.0.0.0/+8", "no prefix"),
            ("ingress deny read from 10.0.0.0/33", "no prefix"),
            ("ingress deny read from 10.0.0.0/", "no prefix"),
            ("ingress deny read port 0", "no port"),
            ("ingress deny read port +1", "no port"),
            ("ingress deny read port 65536", "no port"),
            ("ingress deny read priority -1", "no priority"),
            ("ingress deny read priority 1 port 1", "\"port\" in rule"),
            ("ingress deny read from any log", "\"log\" in rule"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }

        #[test]
        fn written_objects_are_read_again(
            inward: bool,
            accepts: bool,
            bits in 1..64_u32,
            peer in 0..4_u8,
            address: u32,
            length in 0..=32_u8,
            port: Option<u16>,
            priority: u16,
        ) {
            let kept = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let peer = match peer {
                0 => PeerMatch::Any,
                1 => PeerMatch::Vnic(format!("n{address}")),
                2 => PeerMatch::Policy(format!("n{address}")),
                _ => {
                    let address = IpAddr::from((address & kept).to_be_bytes());
                    PeerMatch::Prefix(Prefix::new(address, length).unwrap())
                }
            };
            let rule = Rule {
                direction: if inward { Direction::Ingress } else { Direction::Egress },
                action: if accepts { RuleAction::Accept } else { RuleAction::Deny },
                operations: Operations::from_bits(bits),
                peer,
                port: port.filter(|port| *port > 0),
                priority,
            };
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }
}
