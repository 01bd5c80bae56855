/*
 * What an object of each kind costs to make and to destroy, beside so many others.
 *
 * Makes COUNT objects of a kind, or as many as there may be, then destroys them in the order in
 * which they were made. "mr-beside" and "mw-beside" are a thousand regions and windows, one at a
 * time, beside COUNT queue pairs. Out: a line for each kind and count: the kind, the count that was
 * asked for, the objects that there were, nanoseconds for each to make and to destroy.
 * With COUNT_INSTRUCTIONS, below callgrind, each of these is a dump of its own instead.
 * Usage: objects COUNT[,COUNT...] [KIND...]
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <fcntl.h>
#include <rdma/rdma_cma.h>

#ifdef COUNT_INSTRUCTIONS
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) (void)name
#endif

enum { TURNS = 1000, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

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

static const struct kind {
	const char *name;
	void *(*make)(void);
	int (*end)(void *);
	int is_beside;
} kinds[] = {
	{"pd", make_pd, end_pd, 0},
	{"mr", make_mr, end_mr, 0},
	{"mr-local", make_local_mr, end_mr, 0},
	{"mw", make_mw, end_mw, 0},
	{"cq", make_cq, end_cq, 0},
	{"qp", make_qp, end_qp, 0},
	{"srq", make_srq, end_srq, 0},
	{"ah", make_ah, end_ah, 0},
	{"xrcd", make_xrcd, end_xrcd, 0},
	{"channel", make_channel, end_channel, 0},
	{"cm-id", make_id, end_id, 0},
	{"mr-beside", make_local_mr, end_mr, 1},
	{"mw-beside", make_mw, end_mw, 1},
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

static void measure_beside(const struct kind *kind, long count, void **all)
{
	const struct kind qps = {"qp", make_qp, end_qp, 0};
	long made = make_all(&qps, all, count);
	double make = 0, end = 0;

	if (made == 0)
		fail("create_qp");
	CALLGRIND_ZERO_STATS;
	for (int turn = 0; turn < TURNS; turn++) {
		double begin = now();
		void *it = kind->make();
		double between = now();

		if (!it)
			fail(kind->name);
		check(kind->end(it), kind->name);
		make += between - begin;
		end += now() - between;
	}
	counted(kind, count, "end");
	/* For each of the thousand. */
	told(kind, count, made, make / TURNS * made, end / TURNS * made);
	end_all(&qps, all, made);
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
	if (!cq || !events || ibv_query_gid(context, 1, 0, &gid))
		fail("no RDMA device, or no resources on it");
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		char *at = count > 1 ? words[1] : "1000";

		/* One for all that is allocated at first. */
		void *first = kinds[i].make();
		if (!first)
			fail(kinds[i].name);
		check(kinds[i].end(first), kinds[i].name);
		while (is_wanted(kinds[i].name, count, words)) {
			long number = strtol(at, &at, 10);
			void **all = calloc(number, sizeof *all);

			if (number <= 0 || !all)
				fail("COUNT");
			(kinds[i].is_beside ? measure_beside : measure)(&kinds[i], number, all);
			free(all);
			if (*at++ != ',')
				break;
		}
	}
	return 0;
}
