//! Has the helper give this host's interfaces the addresses of policies, and says what is wrong.

use crate::daemon_log::Level;
use crate::reactor::Timer;
use crate::server::Server;
use crate::server::operation_contexts::StatusRows;
use omniverb_netns::AddressState;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Until the helper is told again of what it could not be told.
const RETRY: Duration = Duration::from_secs(1);
/// How long the helper may take to remove addresses when the daemon ends.
const REMOVAL: Duration = Duration::from_secs(1);

impl Server {
    /// Tells the helper which addresses vNICs need, if that has changed. If it has no room for that
    /// now, or it fails, it hears later.
    pub(super) fn tell_addresses(&mut self) {
        let Some(wanted) = self.addresses.news() else { return };
        let namespace = self.underlay.namespace();
        let told = namespace.and_then(|of| self.helper.want_addresses(&of, &wanted));
        match told {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                if self.addresses.failed() {
                    if !wanted.is_empty() {
                        let text = format_args!(
                            "addresses of policies stay as they are: {error}; it is tried again"
                        );
                        self.journal.log(Level::Warning, text);
                    }
                    self.reactor.set(RETRY, Timer::PolicyAddresses);
                }
                return;
            }
        }
        self.addresses.heard();
    }

    /// Has the helper remove all of them, and waits for that a while.
    pub(super) fn remove_addresses(&mut self) {
        let nothing = BTreeMap::new();
        let namespace = self.underlay.namespace();
        let told = namespace.and_then(|of| self.helper.want_addresses(&of, &nothing));
        let is_done = told.is_ok() && self.helper.has_removed_addresses(REMOVAL);
        if !is_done && self.addresses.is_any_needed() {
            let text = "addresses of policies may be left on interfaces: the next daemon of this \
                        host removes them";
            self.journal.log(Level::Warning, format_args!("{text}"));
        }
    }

    /// The helper is told again.
    pub(super) fn tell_addresses_again(&mut self) {
        self.tell_addresses();
        if self.addresses.has_failed() {
            self.reactor.set(RETRY, Timer::PolicyAddresses);
        }
    }

    /// The helper says what has become of addresses.
    pub(super) fn addresses_became(&mut self, states: AddressState) {
        for (address, error) in self.addresses.became(states) {
            let policy = self.objects.policy_of(address).unwrap_or_default();
            match error {
                None => {
                    let text = format_args!("this host has {address} of policy {policy:?} now");
                    self.journal.log(Level::Info, text);
                }
                Some(error) if !self.addresses.is_needed(address) => {
                    let text = format_args!(
                        "cannot remove {address} from its interface: {error}; it is tried again \
                         every second"
                    );
                    self.journal.log(Level::Warning, text);
                }
                Some(error) => {
                    let text = problem(address, &error);
                    let text = format_args!("policy {policy:?}: {text}");
                    self.journal.log(Level::Warning, text);
                }
            }
        }
    }
}

impl StatusRows<'_> {
    /// Why this host does not have the address of the policy in this row, if it lacks it.
    pub(super) fn problem_of_address(&self, row: &Value) -> Option<String> {
        let address = row["fields"]["underlay"].as_str().filter(|_| row["kind"] == "policy")?;
        let address: IpAddr = address.parse().ok()?;
        Some(problem(address, &self.addresses.problem(address)?))
    }
}

/// Why this host does not have an address of a policy, and what to do.
fn problem(address: IpAddr, error: &io::Error) -> String {
    let command = match address {
        IpAddr::V4(_) => format!("ip address add {address}/32 dev INTERFACE"),
        // No source of packets that do not name it.
        IpAddr::V6(_) => format!("ip address add {address}/128 dev INTERFACE preferred_lft 0"),
    };
    let text = match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            format!("no interface has the tenant's underlay address, so none gets {address}")
        }
        io::ErrorKind::PermissionDenied => format!(
            "cannot add {address} to an interface: {error}: give omniverbd CAP_NET_ADMIN, or run \
             {command:?}"
        ),
        _ => format!("cannot add {address} to an interface: {error}: or run {command:?}"),
    };
    format!("{text}; until then its vNICs reach no other host")
}
