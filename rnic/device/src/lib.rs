//! PD, MR, CQ, QP, SRQ, AH: the verbs state machine.
