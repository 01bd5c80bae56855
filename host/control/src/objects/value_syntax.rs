//! Values of objects as files and commands write them: rates, sizes, datapaths, faults, adoption.

use omniverb_session::network_fault_text::{self, Faults};
use omniverb_session::tc_units;
use omniverb_tenancy::{Adoption, Datapath};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// Defines a value that is one word in files.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident($of:ty), $parse:expr, $show:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub $of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let text = String::deserialize(from)?;
                let parse: fn(&str) -> Result<$of, String> = $parse;
                parse(&text).map($name).map_err(D::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let show: fn(&$of) -> String = $show;
                to.serialize_str(&show(&self.0))
            }
        }
    )*};
}

words! {
    /// Bits per second, in the units of tc(8); 0, or `none`: no limit.
    RateValue(u64),
        |text| if text == "none" { Ok(0) } else { tc_units::rate(text) },
        |bits| if *bits == 0 { "none".into() } else { format!("{bits}bit") };
    /// Bytes, in the units of tc(8).
    SizeValue(u64), tc_units::size, |bytes| bytes.to_string();
    /// `direct` or `forwarded`.
    DatapathValue(Datapath), datapath, |path| datapath_word(*path).into();
    /// `exact`, `trusting` or `off`.
    AdoptionValue(Adoption), adoption, |adoption| adoption.name().into();
    /// Faults as a list FAULT=VALUE,...; `none` is no fault.
    FaultsValue(Option<Faults>), network_fault_text::faults,
        |faults| faults.map_or("none".into(), |faults| faults.show());
    /// `psp` or `none`.
    EncryptionValue(Encryption), encryption, |encryption| encryption_word(*encryption).into();
    /// Control operations per second, as `1000/s`; 0, or `none`: no limit.
    OperationRateValue(u32), operation_rate,
        |rate| if *rate == 0 { "none".into() } else { format!("{rate}/s") };
    /// Operations of the data path per second, as `100k`; 0, or `none`: no limit.
    OpsValue(u32),
        |text| if text == "none" { Ok(0) } else { tc_units::ops(text) },
        |ops| if *ops == 0 { "none".into() } else { format!("{ops}/s") };
    /// Whether a policy's rate is for each vNIC or shared.
    ModeValue(Mode), mode, |mode| if *mode == Mode::Each { "each" } else { "shared" }.into();
}

fn operation_rate(text: &str) -> Result<u32, String> {
    match text {
        "none" => Ok(0),
        text => tc_units::operations(text),
    }
}

/// Whether a policy's rate is for each vNIC or shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To each vNIC that has the policy.
    Each,
    /// To all vNICs that have the policy, together.
    Shared,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "each" => Ok(Mode::Each),
        "shared" => Ok(Mode::Shared),
        other => Err(format!("{other:?} is neither each nor shared")),
    }
}

/// By what packets between hosts are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// They are in plain.
    None,
    /// By PSP, version 0.
    Psp,
}

fn encryption(text: &str) -> Result<Encryption, String> {
    match text {
        "none" => Ok(Encryption::None),
        "psp" => Ok(Encryption::Psp),
        other => Err(format!("{other:?} is neither none nor psp")),
    }
}

fn encryption_word(encryption: Encryption) -> &'static str {
    match encryption {
        Encryption::None => "none",
        Encryption::Psp => "psp",
    }
}

fn datapath(text: &str) -> Result<Datapath, String> {
    match text {
        "direct" => Ok(Datapath::Direct),
        "forwarded" => Ok(Datapath::Forwarded),
        other => Err(format!("{other:?} is neither direct nor forwarded")),
    }
}

fn datapath_word(datapath: Datapath) -> &'static str {
    match datapath {
        Datapath::Direct => "direct",
        Datapath::Forwarded => "forwarded",
    }
}

fn adoption(text: &str) -> Result<Adoption, String> {
    Adoption::from_name(text).ok_or_else(|| format!("{text:?} is none of exact, trusting and off"))
}
