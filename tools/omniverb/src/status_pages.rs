//! Joins the pieces of the daemon's status into one document (`Status` of the protocol).
//!
//! (Also part of the tests of `host/control`, which see what people see.)

use serde_json::{Map, Value, json};

/// A document under construction.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    daemon: Value,
    vnics: Vec<Value>,
    objects: Vec<Value>,
}

impl Pages {
    /// Adds the lines of a piece. A row follows the row it belongs to, and one that belongs to none
    /// is ignored.
    pub(crate) fn add(&mut self, lines: &[u8]) -> Result<(), serde_json::Error> {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let row: Map<String, Value> = serde_json::from_slice(line)?;
            for (kind, row) in row {
                self.row(&kind, row);
            }
        }
        Ok(())
    }

    fn row(&mut self, kind: &str, mut row: Value) {
        let list = match kind {
            "daemon" => {
                self.daemon = row;
                return;
            }
            "vnic" => Some(&mut self.vnics),
            "object" => Some(&mut self.objects),
            "process" => inside(&mut self.vnics, &["processes"]),
            "qp" => inside(&mut self.vnics, &["processes", "qps"]),
            "peer" => inside(&mut self.vnics, &["processes", "qps", "peers"]),
            "waiting_for" => inside(&mut self.vnics, &["processes", "qps", "waiting_for"]),
            _ => None,
        };
        let empty: &[&str] = match kind {
            "process" => &["qps"],
            "qp" => &["peers", "waiting_for"],
            _ => &[],
        };
        for name in empty {
            row[*name] = json!([]);
        }
        if let Some(list) = list {
            list.push(row);
        }
    }

    /// The vNICs, as they came.
    pub(crate) fn vnics(self) -> Value {
        json!({ "vnics": self.vnics })
    }

    /// Tenants, policies and vNICs as they were described.
    pub(crate) fn objects(self) -> Vec<Value> {
        self.objects
    }

    /// The whole document.
    pub(crate) fn status(mut self) -> Value {
        for vnic in &mut self.vnics {
            if vnic["processes"].is_null() {
                vnic["processes"] = json!([]);
            }
            let processes = vnic["processes"].as_array_mut();
            let qps = processes.into_iter().flatten().flat_map(|p| p["qps"].as_array_mut());
            qps.flatten().for_each(summarize);
        }
        json!({ "daemon": self.daemon, "vnics": self.vnics })
    }
}

/// The list of this name in the last of what the last of ... has.
fn inside<'a>(mut list: &'a mut Vec<Value>, names: &[&str]) -> Option<&'a mut Vec<Value>> {
    for name in names {
        let field = list.last_mut()?.as_object_mut()?.entry(*name).or_insert_with(|| json!([]));
        list = field.as_array_mut()?;
    }
    Some(list)
}

/// The common state of a queue pair's peers.
fn summarize(qp: &mut Value) {
    let peers = qp["peers"].as_array().map_or(&[][..], Vec::as_slice);
    let (path, why) = common_path(peers);
    let operations = qp["operations"].as_u64().unwrap_or(0);
    let datapath = operations_name(operations, &path).to_owned();
    qp["path"] = path.into();
    qp["why"] = why.into();
    qp["datapath"] = datapath.into();
    if let Some(fields) = qp.as_object_mut() {
        fields.remove("operations");
    }
}

/// The path of a queue pair, and why: that of its peers, if it is one.
fn common_path(peers: &[Value]) -> (String, String) {
    let Some(first) = peers.first() else { return ("none".into(), "not connected".into()) };
    let all = |key: &str| peers.iter().all(|peer| peer[key] == first[key]);
    let text = |key: &str| first[key].as_str().unwrap_or("?").to_owned();
    match (all("path"), all("why")) {
        (true, true) => (text("path"), text("why")),
        (true, false) => (text("path"), "each peer has its own reason".into()),
        _ => ("mixed".into(), "each peer has its own path".into()),
    }
}

/// How one-sided operations of a direct link are done; otherwise the path.
fn operations_name(bits: u64, path: &str) -> &str {
    match bits & 3 {
        1 if path == "direct" => "mapped",
        2 if path == "direct" => "mediated",
        3 if path == "direct" => "mapped+mediated",
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_one_document() {
        let mut pages = Pages::default();
        pages.add(b"{\"waiting_for\":5}\n{\"daemon\":{\"pid\":3}}\n{\"vnic\":{}}\n").unwrap();
        pages.add(b"{\"process\":{\"pid\":7}}\n{\"qp\":{\"operations\":1}}\n").unwrap();
        pages.add(b"{\"peer\":{\"path\":\"direct\",\"why\":\"x\"}}\n").unwrap();
        pages.add(b"{\"peer\":{\"path\":\"direct\",\"why\":\"y\"}}\n").unwrap();
        pages.add(b"{\"qp\":{\"operations\":0}}\n{\"waiting_for\":9}\n{\"vnic\":{}}\n").unwrap();
        assert!(pages.add(b"{\"qp\":").is_err());
        let status = pages.status();
        assert_eq!(status["daemon"]["pid"], 3);
        let qps = &status["vnics"][0]["processes"][0]["qps"];
        assert_eq!((&qps[0]["path"], &qps[0]["datapath"]), (&json!("direct"), &json!("mapped")));
        assert_eq!(qps[0]["why"], "each peer has its own reason");
        assert_eq!(qps[0]["operations"], Value::Null);
        assert_eq!((&qps[1]["path"], &qps[1]["waiting_for"]), (&json!("none"), &json!([9])));
        assert_eq!(status["vnics"][1]["processes"], json!([]));
    }
}
