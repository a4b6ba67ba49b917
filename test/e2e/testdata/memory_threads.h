// memory_threads.h - a part of memory.c: threads that work all the time, each on buffers of its own.
#ifndef TEST_MEMORY_THREADS_H
#define TEST_MEMORY_THREADS_H

#include "memory_buffers.h"

struct job {
	const struct kind *kind;
	size_t bytes;
	int device;
	uint32_t random;
	handle stream;
	pthread_t thread;
	_Atomic uint64_t rounds;
	_Atomic uint32_t wrong;
	_Atomic int error; // of an allocation; the thread has ended
};
struct kind {
	const char *name;
	void (*run)(struct job *);
};
static struct job jobs[JOBS];
static int job_count;
static _Atomic bool ending;

static uint32_t random_of(struct job *j)
{ // xorshift
	j->random ^= j->random << 13;
	j->random ^= j->random >> 17;
	j->random ^= j->random << 5;
	return j->random;
}

static bool goes_on(struct job *j)
{
	j->rounds++;
	return !ending;
}

static void look(struct job *j, const struct buffer *b)
{
	long long at = wrong_at(b);
	if (at < 0)
		return;
	j->wrong++;
	fprintf(stderr, "%s: round %llu: %s buffer of %zu bytes at %#llx is wrong at %lld\n", j->kind->name,
		(unsigned long long)j->rounds, b->way->name, b->bytes, b->at, at);
}

static bool take(struct job *j, struct buffer *b, int way, size_t bytes)
{
	j->error = allocate(b, &ways[way], j->device, bytes);
	if (j->error)
		return false;
	OK(fill(b, random_of(j)));
	return true;
}

static void launch_and_wait(struct job *j, bool whole_context)
{
	struct buffer b;
	handle event;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	OK(cuEventCreate(&event, 2));
	do {
		for (int i = 0; i < 4; i++)
			OK(step(&b, j->stream, random_of(j)));
		switch (j->rounds % 4) {
		case 0: OK(cuStreamSynchronize(j->stream)); break;
		case 1:
			OK(cuEventRecord(event, j->stream));
			OK(cuEventSynchronize(event));
			break;
		case 2: OK(whole_context ? cuCtxSynchronize() : cuStreamSynchronize(j->stream)); break;
		case 3: continue; // further ahead
		}
		look(j, &b);
	} while (goes_on(j));
	OK(cuStreamSynchronize(j->stream));
	look(j, &b);
	OK(release(&b));
}

static void chains(struct job *j) { launch_and_wait(j, false); }

// Not beside captures: a wait for the context invalidates them.
static void whole_waits(struct job *j) { launch_and_wait(j, true); }

// A graph that is made once, and replayed for ever.
static void graphs(struct job *j)
{
	struct buffer b;
	handle graph, executable;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	struct buffer before = b;
	OK(cuStreamBeginCapture_v2(j->stream, 1));
	for (uint32_t i = 1; i <= 3; i++)
		OK(step(&b, j->stream, i));
	OK(cuStreamEndCapture(j->stream, &graph));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	b = before;
	do {
		for (int i = 0; i < 5; i++) {
			OK(cuGraphLaunch(executable, j->stream));
			for (uint32_t k = 1; k <= 3; k++) {
				b.factor *= 3;
				b.addend = b.addend * 3 + k;
			}
		}
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(release(&b));
}

// Captures in each mode, one after the other.
static void captures(struct job *j)
{
	struct buffer b;
	handle graph, executable;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	do {
		OK(step(&b, j->stream, 7));
		OK(cuStreamBeginCapture_v2(j->stream, j->rounds % 2 ? 1 : 2)); // a global one forbids what others do
		OK(step(&b, j->stream, random_of(j)));
		usleep(random_of(j) % 500);
		OK(step(&b, j->stream, random_of(j)));
		OK(cuStreamEndCapture(j->stream, &graph));
		OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
		OK(cuGraphLaunch(executable, j->stream));
		OK(cuStreamSynchronize(j->stream));
		OK(cuGraphExecDestroy(executable));
		OK(cuGraphDestroy(graph));
		look(j, &b);
	} while (goes_on(j));
	OK(release(&b));
}

// Copies both ways from and to pinned memory, and on the device.
static void copies(struct job *j)
{
	struct buffer from, to;
	uint32_t *host;
	if (!take(j, &from, MEMORY, j->bytes / 2 / 4 * 4) || !take(j, &to, MEMORY, j->bytes / 2 / 4 * 4))
		return;
	OK(cuMemHostAlloc((void **)&host, from.bytes, 0));
	do {
		newly_filled(&from, random_of(j));
		expect(&from, 0, host, from.bytes / 4);
		OK(cuMemcpyHtoDAsync_v2(from.at, host, from.bytes, j->stream));
		OK(step(&from, j->stream, random_of(j)));
		OK(cuMemcpyDtoDAsync_v2(to.at, from.at, from.bytes, j->stream));
		to.seed = from.seed, to.factor = from.factor, to.addend = from.addend;
		OK(step(&to, j->stream, random_of(j)));
		OK(cuMemcpyDtoHAsync_v2(host, to.at, to.bytes, j->stream));
		OK(cuStreamSynchronize(j->stream));
		uint32_t *wanted = malloc(to.bytes);
		expect(&to, 0, wanted, to.bytes / 4);
		if (memcmp(host, wanted, to.bytes) != 0) {
			j->wrong++;
			fprintf(stderr, "copies: round %llu: what was copied is wrong\n", (unsigned long long)j->rounds);
		}
		free(wanted);
		look(j, &from);
	} while (goes_on(j));
	OK(cuMemFreeHost(host));
	OK(release(&from));
	OK(release(&to));
}

// A buffer that is handed from stream to stream by events.
static void streams(struct job *j)
{
	struct buffer b;
	handle beside, event[2];
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	OK(cuStreamCreate(&beside, NON_BLOCKING));
	for (int i = 0; i < 2; i++)
		OK(cuEventCreate(&event[i], 2));
	do {
		for (int i = 0; i < 8; i++) {
			OK(step(&b, i % 2 ? beside : j->stream, random_of(j)));
			OK(cuEventRecord(event[i % 2], i % 2 ? beside : j->stream));
			OK(cuStreamWaitEvent(i % 2 ? j->stream : beside, event[i % 2], 0));
		}
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	OK(cuStreamDestroy_v2(beside));
	OK(release(&b));
}

static void per_thread(struct job *j)
{
	struct buffer b;
	if (!take(j, &b, MEMORY, j->bytes))
		return;
	do {
		for (int i = 0; i < 4; i++)
			OK(step_by(cuLaunchKernel_ptsz, gpus[j->device].chain, &b, NULL, random_of(j)));
		OK(cuStreamSynchronize_ptsz(NULL));
		look(j, &b);
	} while (goes_on(j));
	OK(release(&b));
}

// A context of its own, another one now and then.
static void contexts(struct job *j)
{
	do {
		handle context, module, kernel, stream;
		struct buffer b;
		OK(cuCtxCreate_v2(&context, 0, j->device));
		OK(cuModuleLoadData(&module, image));
		OK(cuModuleGetFunction(&kernel, module, "sim_chain"));
		OK(cuStreamCreate(&stream, NON_BLOCKING));
		if (!take(j, &b, MEMORY, j->bytes))
			return;
		for (int i = 0; i < 20; i++) {
			OK(step_by(cuLaunchKernel, kernel, &b, stream, random_of(j)));
			if (i % 5 == 4) {
				OK(cuStreamSynchronize(stream));
				look(j, &b);
			}
		}
		OK(step_by(cuLaunchKernel, kernel, &b, stream, random_of(j))); // in flight
		OK(cuCtxDestroy_v2(context));
	} while (goes_on(j));
}

// A reservation in which the thread maps memory piece by piece when it needs it, and unmaps it from the end. PyTorch's expandable segments
// do that. The rest of it must not be touched.
static void growing(struct job *j)
{
	enum { PIECES = 8 };
	struct buffer b = {.way = &ways[MAPPED], .device = j->device, .factor = 1};
	b.piece_bytes = rounded_up(j->bytes / PIECES);
	b.physical = calloc(PIECES, sizeof *b.physical);
	OK(cuMemAddressReserve(&b.at, b.piece_bytes * PIECES, 0, 0, 0));
	do {
		if (b.pieces < PIECES && (!b.pieces || random_of(j) % 2))
			j->error = grow(&b);
		else
			OK(shrink(&b));
		if (j->error)
			return;
		b.bytes = b.pieces * b.piece_bytes;
		OK(fill(&b, random_of(j)));
		for (int i = 0; b.bytes && i < 3; i++)
			OK(step(&b, j->stream, random_of(j)));
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	b.bytes = b.piece_bytes * PIECES;
	OK(release_mapped(&b));
}

// Kernels of this device work on memory of the other, after "peers".
static void peers(struct job *j)
{
	struct buffer b;
	struct job other = *j;
	other.device = !j->device;
	OK(cuCtxSetCurrent(gpus[other.device].context));
	bool taken = take(&other, &b, MEMORY, j->bytes);
	OK(cuCtxSetCurrent(gpus[j->device].context));
	j->error = other.error;
	if (!taken)
		return;
	do {
		for (int i = 0; i < 4; i++)
			OK(step_by(cuLaunchKernel, gpus[j->device].chain, &b, j->stream, random_of(j)));
		OK(cuStreamSynchronize(j->stream));
		look(j, &b);
	} while (goes_on(j));
	OK(release(&b));
}

// Buffers of all ways and sizes come and go; what stays keeps what is in it.
static void churn(struct job *j)
{
	enum { SLOTS = 12 };
	struct buffer slot[SLOTS] = {0};
	do {
		struct buffer *b = &slot[random_of(j) % SLOTS];
		if (!b->way) {
			size_t bytes = 1 + random_of(j) % (j->bytes / SLOTS);
			int way = (int)(random_of(j) % WAYS), r;
			if (random_of(j) % 4 == 0)
				bytes = 1 + bytes % 5000;
			r = allocate(b, &ways[way], j->device, bytes);
			if (r == OUT_OF_MEMORY)
				continue;
			OK(r);
			OK(fill(b, random_of(j)));
		} else if (random_of(j) % 3 == 0) {
			OK(cuStreamSynchronize(j->stream));
			look(j, b);
			OK(step(b, j->stream, random_of(j)));
			if (b->way->release != release_plain) // which waits itself
				OK(cuStreamSynchronize(j->stream));
			OK(release(b));
		} else {
			OK(step(b, j->stream, random_of(j)));
			if (random_of(j) % 2) {
				OK(cuStreamSynchronize(j->stream));
				look(j, b);
			}
		}
	} while (goes_on(j));
	OK(cuStreamSynchronize(j->stream));
	for (int i = 0; i < SLOTS; i++)
		if (slot[i].way) {
			look(j, &slot[i]);
			OK(release(&slot[i]));
		}
}

static const struct kind kinds[] = {
	{"chains", chains},         {"whole_waits", whole_waits},
	{"graphs", graphs},         {"captures", captures},
	{"copies", copies},         {"streams", streams},
	{"per_thread", per_thread}, {"contexts", contexts},
	{"growing", growing},       {"churn", churn},
	{"peers", peers},
};

static void *run_job(void *argument)
{
	struct job *j = argument;
	OK(cuCtxSetCurrent(gpus[j->device].context));
	OK(cuStreamCreate(&j->stream, NON_BLOCKING));
	j->kind->run(j);
	return NULL;
}

static void start(const char *name, size_t bytes)
{
	struct job *j = &jobs[job_count];
	*j = (struct job){.bytes = bytes, .device = device, .random = 2463534242u + (uint32_t)job_count * 7919};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].name, name))
			j->kind = &kinds[i];
	if (!j->kind || job_count == JOBS || pthread_create(&j->thread, NULL, run_job, j)) {
		printf("cannot start %s\n", name);
		return;
	}
	printf("started %d\n", job_count++);
}

static void status(void)
{
	uint64_t least = UINT64_MAX, total = 0;
	uint32_t wrong = 0;
	int error = 0;
	for (int i = 0; i < job_count; i++) {
		least = jobs[i].rounds < least ? jobs[i].rounds : least;
		total += jobs[i].rounds;
		wrong += jobs[i].wrong;
		error = jobs[i].error ? jobs[i].error : error;
	}
	printf("wrong %u error %d least %llu total %llu\n", wrong, error, (unsigned long long)(job_count ? least : 0),
	       (unsigned long long)total);
}

static void stop(void)
{
	ending = true;
	for (int i = 0; i < job_count; i++)
		pthread_join(jobs[i].thread, NULL);
	status();
	ending = false;
	job_count = 0;
}

#endif
