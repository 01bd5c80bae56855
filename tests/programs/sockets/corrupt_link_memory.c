/*
 * Writes words of a link's memory that no correct side writes, as fast as it can, until killed:
 *
 *     flip DESCRIPTOR SEED
 *
 * Half of the time only nearly wrong ones: there is always something new, and never anything to be
 * had.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>

/* sockets/formats/src/link_layout.rs */
enum { WORDS = 4096, RING = 1 << 16, BYTES = 2 * WORDS + 2 * RING };
enum { PLACE = 0x00, HEAD = 0x80, FENCE = 0x100, SAID = 0x108, POLLING = 0x180 };
static const uint64_t STOPPED = 1ull << 63, TAKEN = 1ull << 62;

static uint64_t state;

static uint64_t pick(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int count, char **words)
{
	if (count < 3)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(words[1]), 0);
	if (memory == MAP_FAILED)
		return 1;
	state = (uint64_t)atoi(words[2]) * 0x9e3779b97f4a7c15ull + 1;
	for (;;) {
		static const int at[] = { PLACE, PLACE, HEAD, HEAD, FENCE, SAID, POLLING };
		volatile uint64_t *side = (volatile uint64_t *)(memory + (pick() & 1 ? WORDS : 0));
		volatile uint64_t *word = side + at[pick() % 7] / 8;
		uint64_t was = *word;

		switch (pick() % 6) {
		case 0:
			*word = pick();
			break;
		case 1:
			*word = pick() % (2 * RING);
			break;
		case 2:
			*word = was ^ STOPPED;
			break;
		case 3:
			*word = was ^ TAKEN;
			break;
		default:
			/* A little further, not stopped, not taken: it looks like progress. */
			*word = ((was & (TAKEN - 1)) + pick() % 64) & (TAKEN - 1);
		}
	}
}
