/*
 * What the measuring programs have in common: failing with a reason, a clock, and the way of a
 * reliable connection to RTS.
 */
#ifndef OMNIVERB_BENCH_VERBS_H
#define OMNIVERB_BENCH_VERBS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ends the program with what failed, and why if errno says it. */
static void fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
		errno ? strerror(errno) : "failed");
	exit(1);
}

/* For verbs that return an error number. */
static void check(int error, const char *what)
{
	if (error) {
		errno = error;
		fail(what);
	}
}

/* Nanoseconds of a clock that only goes forward. */
static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

/* The next completion, which must be a success within 5 seconds. */
static inline void completed(struct ibv_cq *cq, const char *what)
{
	double deadline = now() + 5e9;
	struct ibv_wc wc;
	int found;

	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		if (now() > deadline)
			break;
	errno = 0;
	if (found == 1 && wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
			ibv_wc_status_str(wc.status));
		exit(1);
	}
	if (found != 1) {
		fprintf(stderr, "%s: %s did not complete within 5 s\n",
			program_invocation_short_name, what);
		exit(1);
	}
}

/* For qsort. */
static inline int compare(const void *a, const void *b)
{
	double one = *(const double *)a, two = *(const double *)b;

	return (one > two) - (one < two);
}

/* Connects a new queue pair with that of the peer, which may reach its memory. */
static inline void to_rts(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    IBV_QP_ACCESS_FLAGS), "modify to INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = *gid, .sgid_index = gid_index, .hop_limit = 1}},
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			    IBV_QP_MIN_RNR_TIMER), "modify to RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      "modify to RTS");
}

#endif
