/*
 * What an object of each kind costs to make and to destroy, beside so many others.
 *
 * Makes COUNT objects of a kind, or as many as there may be, then destroys them in the order in
 * which they were made. The kinds that end in "-beside" are made and destroyed one at a time,
 * beside COUNT others:
 *   mr-beside, mw-beside   regions and windows, beside queue pairs with receives for another region
 *   mr-rereg-beside        ibv_rereg_mr, beside those
 *   mr-mapped-beside       ibv_dereg_mr of a region that a peer has mapped, beside those
 *   qp-reset-beside        RESET of a queue pair with a bound window, beside those of another one
 * Out: a line for each kind and count: the kind, the count that was asked for, the objects that
 * there were, nanoseconds for each to make and to destroy.
 * With COUNT_INSTRUCTIONS, below callgrind, each of these is a dump of its own instead.
 * Usage: objects COUNT[,COUNT...] [KIND...]
 */
#define _GNU_SOURCE
#include "verbs_helpers.h"

#include <fcntl.h>
#include <rdma/rdma_cma.h>

#ifdef COUNT_INSTRUCTIONS
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_DUMP_STATS_AT(name) (void)name
#endif

enum {
	TURNS = 1000,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	/* A region that a peer maps, and WRITEs until then. */
	MAPPED = 1 << 20,
	WRITES_MAX = 10000,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct rdma_event_channel *events;
static union ibv_gid gid;
static char memory[4096];

static void *make_pd(void)
{
	return ibv_alloc_pd(context);
}

static int end_pd(void *it)
{
	return ibv_dealloc_pd(it);
}

static void *make_mr(void)
{
	return ibv_reg_mr(pd, memory, sizeof memory, ACCESS);
}

static int end_mr(void *it)
{
	return ibv_dereg_mr(it);
}

static void *make_local_mr(void)
{
	return ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
}

static void *make_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_2);
}

static int end_mw(void *it)
{
	return ibv_dealloc_mw(it);
}

static void *make_cq(void)
{
	return ibv_create_cq(context, 1, NULL, NULL, 0);
}

static int end_cq(void *it)
{
	return ibv_destroy_cq(it);
}

static void *make_qp(void)
{
	return ibv_create_qp(pd, &(struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	});
}

static int end_qp(void *it)
{
	return ibv_destroy_qp(it);
}

static void *make_srq(void)
{
	return ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = 1, .max_sge = 1}});
}

static int end_srq(void *it)
{
	return ibv_destroy_srq(it);
}

static void *make_ah(void)
{
	return ibv_create_ah(pd, &(struct ibv_ah_attr){
		.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1},
	});
}

static int end_ah(void *it)
{
	return ibv_destroy_ah(it);
}

static void *make_xrcd(void)
{
	return ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT,
	});
}

static int end_xrcd(void *it)
{
	return ibv_close_xrcd(it);
}

static void *make_channel(void)
{
	return ibv_create_comp_channel(context);
}

static int end_channel(void *it)
{
	return ibv_destroy_comp_channel(it);
}

static void *make_id(void)
{
	struct rdma_cm_id *id;

	return rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

static int end_id(void *it)
{
	return rdma_destroy_id(it);
}

static int keep(void *it)
{
	(void)it;
	return 0;
}

static struct ibv_mr *region(void)
{
	static struct ibv_mr *mr;

	if (!mr)
		mr = ibv_reg_mr(pd, memory, sizeof memory, ACCESS | IBV_ACCESS_MW_BIND);
	return mr;
}

/* One with a receive. */
static void *make_receiving_qp(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = region()->lkey};
	struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
	struct ibv_qp *qp = make_qp();

	if (!qp)
		return NULL;
	check(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "modify to INIT");
	check(ibv_post_recv(qp, &wr, &bad), "post_recv");
	return qp;
}

static void *make_other_mr(void)
{
	static struct ibv_mr *mr;

	if (!mr)
		return mr = make_local_mr();
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
	      "rereg_mr");
	return mr;
}

/* Does what `wr` says, and waits for that. */
static void done(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	check(ibv_post_send(qp, wr, &bad), "post_send");
	completed(cq, "a request");
}

#ifndef COUNT_INSTRUCTIONS
/* Whether the kernel has this page on a file that others can map. */
static int is_shared(const void *page)
{
	FILE *file = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[512], flags[8];
	int found = 0;

	if (!file)
		fail("/proc/self/maps");
	while (!found && fgets(line, sizeof line, file))
		found = sscanf(line, "%lx-%lx %7s", &start, &end, flags) == 3 && flags[3] == 's' &&
			start <= (unsigned long)page && (unsigned long)page < end;
	fclose(file);
	return found;
}

/* A region that is mapped by the peer of a queue pair, which is one of ours. */
static void *make_mapped_mr(void)
{
	static struct ibv_qp *writer, *owner;
	static char *pages;
	struct ibv_mr *mr;

	if (!writer) {
		writer = make_qp();
		owner = make_qp();
		if (!writer || !owner || posix_memalign((void **)&pages, 4096, MAPPED))
			fail("create_qp");
		memset(pages, 1, MAPPED);
		to_rts(writer, owner->qp_num, &gid, 0);
		to_rts(owner, writer->qp_num, &gid, 0);
	}
	mr = ibv_reg_mr(pd, pages, MAPPED, ACCESS);
	for (int i = 0; mr && i < WRITES_MAX && !is_shared(pages); i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory,
				      .lkey = region()->lkey};

		for (int at = 0; at < MAPPED; at += sizeof memory)
			done(writer, &(struct ibv_send_wr){
				.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				.wr.rdma = {.remote_addr = (uintptr_t)pages + at, .rkey = mr->rkey},
			});
	}
	return mr && is_shared(pages) ? mr : NULL;
}
#endif

/* A queue pair that can send to nobody, which is enough to bind windows. */
static struct ibv_qp *make_binding_qp(void)
{
	struct ibv_qp *qp = make_qp();

	if (qp)
		to_rts(qp, 0xfffffe, &gid, 0);
	return qp;
}

static void bind_window(struct ibv_qp *qp, struct ibv_mw *mw)
{
	mw->rkey = ibv_inc_rkey(mw->rkey);
	done(qp, &(struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = {.mw = mw, .rkey = mw->rkey, .bind_info = {
			.mr = region(), .addr = (uintptr_t)memory, .length = 64,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
		}},
	});
}

static void *make_bound_mw(void)
{
	static struct ibv_qp *qp;
	struct ibv_mw *mw = make_mw();

	if (!qp && !(qp = make_binding_qp()))
		fail("create_qp");
	if (mw)
		bind_window(qp, mw);
	return mw;
}

static void *make_bound_qp(void)
{
	static struct ibv_qp *qp;
	static struct ibv_mw *mw;

	if (!qp) {
		qp = make_qp();
		mw = make_mw();
	}
	if (!qp || !mw)
		return NULL;
	to_rts(qp, 0xfffffd, &gid, 0);
	bind_window(qp, mw);
	return qp;
}

static int reset_qp(void *it)
{
	return ibv_modify_qp(it, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE);
}

static const struct kind {
	const char *name;
	void *(*make)(void);
	int (*end)(void *);
	/* What it is beside, and how often; 0: beside those of its kind. */
	void *(*make_other)(void);
	int (*end_other)(void *);
	int turns;
	/* To make it is not counted. */
	int is_prepared;
} kinds[] = {
	{.name = "pd", .make = make_pd, .end = end_pd},
	{.name = "mr", .make = make_mr, .end = end_mr},
	{.name = "mr-local", .make = make_local_mr, .end = end_mr},
	{.name = "mw", .make = make_mw, .end = end_mw},
	{.name = "cq", .make = make_cq, .end = end_cq},
	{.name = "qp", .make = make_qp, .end = end_qp},
	{.name = "srq", .make = make_srq, .end = end_srq},
	{.name = "ah", .make = make_ah, .end = end_ah},
	{.name = "xrcd", .make = make_xrcd, .end = end_xrcd},
	{.name = "channel", .make = make_channel, .end = end_channel},
	{.name = "cm-id", .make = make_id, .end = end_id},
	{"mr-beside", make_local_mr, end_mr, make_receiving_qp, end_qp, TURNS, 0},
	{"mw-beside", make_mw, end_mw, make_receiving_qp, end_qp, TURNS, 0},
	{"mr-rereg-beside", make_other_mr, keep, make_receiving_qp, end_qp, TURNS, 0},
#ifndef COUNT_INSTRUCTIONS /* valgrind has no clone() as moving pages takes */
	{"mr-mapped-beside", make_mapped_mr, end_mr, make_receiving_qp, end_qp, TURNS / 20, 1},
#endif
	{"qp-reset-beside", make_bound_qp, reset_qp, make_bound_mw, end_mw, TURNS / 20, 1},
};

/* Makes as many as there may be, at most `count`; how many. */
static long make_all(const struct kind *kind, void **all, long count)
{
	long made = 0;

	while (made < count && (all[made] = kind->make()))
		made++;
	return made;
}

static void end_all(const struct kind *kind, void **all, long count)
{
	for (long i = 0; i < count; i++)
		check(kind->end(all[i]), kind->name);
}

static void told(const struct kind *kind, long count, long made, double make, double end)
{
#ifndef COUNT_INSTRUCTIONS
	printf("%s %ld %ld %.0f %.0f\n", kind->name, count, made, make / made, end / made);
	fflush(stdout);
#else
	(void)make, (void)end;
	printf("%s %ld %ld\n", kind->name, count, made);
#endif
}

/* What is counted from here on has another name than what was until now. */
static void counted(const struct kind *kind, long count, const char *what)
{
	char name[64];

	snprintf(name, sizeof name, "%s %ld %s", kind->name, count, what);
	CALLGRIND_DUMP_STATS_AT(name);
}

static void measure(const struct kind *kind, long count, void **all)
{
	CALLGRIND_ZERO_STATS;
	double begin = now();
	long made = make_all(kind, all, count);

	counted(kind, count, "make");
	if (made == 0)
		fail(kind->name);
	double between = now();
	CALLGRIND_ZERO_STATS;
	end_all(kind, all, made);
	counted(kind, count, "end");
	told(kind, count, made, between - begin, now() - between);
}

/* What the next kind may be made beside, too. */
static struct others {
	void *(*make)(void);
	int (*end)(void *);
	void **all;
	long made;
} others;

static void end_others(void)
{
	for (long i = 0; i < others.made; i++)
		check(others.end(others.all[i]), "what others are beside");
	free(others.all);
	others = (struct others){0};
}

static void make_others(const struct kind *kind, long count)
{
	end_others();
	others = (struct others){
		.make = kind->make_other, .end = kind->end_other, .all = calloc(count, sizeof(void *)),
	};
	while (others.all && others.made < count &&
	       (others.all[others.made] = kind->make_other()))
		others.made++;
	if (others.made == 0)
		fail(kind->name);
}

static void measure_beside(const struct kind *kind, long count)
{
	double make = 0, end = 0;

	if (others.make != kind->make_other)
		make_others(kind, count);
	CALLGRIND_ZERO_STATS;
	for (int turn = 0; turn < kind->turns; turn++) {
		if (kind->is_prepared) {
			CALLGRIND_TOGGLE_COLLECT;
		}
		double begin = now();
		void *it = kind->make();
		double between = now();

		if (!it)
			fail(kind->name);
		if (kind->is_prepared) {
			CALLGRIND_TOGGLE_COLLECT;
		}
		check(kind->end(it), kind->name);
		make += between - begin;
		end += now() - between;
	}
	counted(kind, count, "end");
	/* For each of the turns. */
	told(kind, count, others.made, make / kind->turns * others.made,
	     end / kind->turns * others.made);
}

static int is_wanted(const char *name, int count, char **words)
{
	for (int i = 2; i < count; i++)
		if (!strcmp(words[i], name))
			return 1;
	return count < 3;
}

int main(int count, char **words)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	cq = pd ? ibv_create_cq(context, 1, NULL, NULL, 0) : NULL;
	events = rdma_create_event_channel();
	if (!cq || !events || ibv_query_gid(context, 1, 0, &gid) || !region())
		fail("no RDMA device, or no resources on it");
	char *at = count > 1 ? words[1] : "1000";
	do {
		long number = strtol(at, &at, 10);
		void **all = calloc(number, sizeof *all);

		if (number <= 0 || !all)
			fail("COUNT");
		for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
			if (!is_wanted(kinds[i].name, count, words))
				continue;
			/* One for all that is allocated at first. */
			void *first = kinds[i].make();

			if (!first)
				fail(kinds[i].name);
			check(kinds[i].end(first), kinds[i].name);
			if (kinds[i].turns)
				measure_beside(&kinds[i], number);
			else
				measure(&kinds[i], number, all);
		}
		end_others();
		free(all);
	} while (*at++ == ',');
	return 0;
}
