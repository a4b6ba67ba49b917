// The worker of the evaluation: a program of one kind of request, open-loop or back to back. Included by worker.c.
//
//   gpreempt-bench bench-worker evaluate --work <spin|gemms>
//
// It serves the order go of PROTOCOL.md. With --closed 1 a request comes not at its time but after the end of the one before: as long as it
// would after that one's arrival. The answer tells when; requests that had not come at the end do not count.
#include <fcntl.h>
#include <sys/resource.h>

enum {
	WARM_UP_REQUESTS = 5,
	GEMMS = 5,
	GEMM_SIDE = 1024,
	GEMM_TILE = 64, // evaluation.cu
};
static const uint64_t HASH_START = 14695981039346656037ull;
static const uint64_t SPIN_BEFORE_NS = 200000; // of an arrival: sleeping alone comes back too late
static const uint64_t DRAIN_NS = 1000000000;   // how long requests that arrived in time are still served

static CUfunction kernel;
static uint64_t spin_iterations, spin_kernels;
static CUdeviceptr gemm_left, gemm_right, gemm_result[GEMMS];
static uint64_t queued_ns; // when all of the latest request was; of work that does not say, 0

static CUdeviceptr allocate(size_t bytes)
{
	CUdeviceptr pointer;
	CHECK(cuMemAlloc_v2(&pointer, bytes));
	return pointer;
}

// Goes on with an FNV-1a hash of what is on the device.
static uint64_t hash_words(uint64_t hash, CUdeviceptr from, uint32_t words)
{
	uint32_t *host = malloc(words * sizeof *host);
	if (!host)
		fail("no memory for %u words", words);
	CHECK(cuMemcpyDtoH_v2(host, from, words * sizeof *host));
	for (uint32_t i = 0; i < words; i++)
		hash = (hash ^ host[i]) * 1099511628211ull;
	free(host);
	return hash;
}

// ---- A number of kernels of equal length

static void set_up_spin(void)
{
	kernel = function("bench_work");
	spin_iterations = number("iterations", 10000);
	spin_kernels = number("kernels", 1);
}

static void request_spin(void)
{
	void *parameters[] = {&memory, &spin_iterations};
	for (uint64_t i = 0; i < spin_kernels; i++)
		CHECK(cuLaunchKernel(kernel, multiprocessors, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
	queued_ns = monotonic_ns();
	CHECK(cuStreamSynchronize(stream));
}

// ---- Products of half-precision matrices

static CUdeviceptr some_halves(uint32_t seed)
{
	size_t halves = (size_t)GEMM_SIDE * GEMM_SIDE;
	uint16_t *host = malloc(halves * sizeof *host);
	if (!host)
		fail("no memory for a matrix of %d", GEMM_SIDE);
	for (size_t i = 0; i < halves; i++) {
		seed = seed * 1664525u + 1013904223u;
		host[i] = (seed >> 16 & 0x8000) | 0x2c00 | (seed >> 8 & 0x3ff); // of either sign, from 1/16 to 1/8
	}
	CUdeviceptr matrix = allocate(halves * sizeof *host);
	CHECK(cuMemcpyHtoD_v2(matrix, host, halves * sizeof *host));
	free(host);
	return matrix;
}

static void set_up_gemms(void)
{
	gemm_left = some_halves(1);
	gemm_right = some_halves(2);
	for (int i = 0; i < GEMMS; i++)
		gemm_result[i] = allocate(sizeof(uint16_t) * GEMM_SIDE * GEMM_SIDE);
	kernel = function("evaluation_gemm");
}

static void request_gemms(void)
{
	uint32_t side = GEMM_SIDE;
	unsigned tiles = GEMM_SIDE / GEMM_TILE;
	for (int i = 0; i < GEMMS; i++) {
		void *parameters[] = {&gemm_left, &gemm_right, &gemm_result[i], &side};
		CHECK(cuLaunchKernel(kernel, tiles * tiles, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
	}
	queued_ns = monotonic_ns();
	CHECK(cuStreamSynchronize(stream));
}

// Of the products, which every request must give again.
static uint64_t gemms_hash(void)
{
	uint64_t hash = HASH_START;
	for (int i = 0; i < GEMMS; i++)
		hash = hash_words(hash, gemm_result[i], GEMM_SIDE * GEMM_SIDE / 2);
	return hash;
}

static const struct evaluation_work {
	const char *name;
	void (*set_up)(void), (*request)(void);
	uint64_t (*hash)(void);
} evaluation_works[] = {
	{"spin", set_up_spin, request_spin, NULL},
	{"gemms", set_up_gemms, request_gemms, gemms_hash},
};

static void wait_for(uint64_t at)
{
	uint64_t now = monotonic_ns();
	if (now + SPIN_BEFORE_NS < at)
		sleep_ns(at - SPIN_BEFORE_NS - now);
	while (monotonic_ns() < at)
		;
}

struct evaluation_go {
	uint64_t start, end, prepare_ns;
	int (*hint)(int64_t, double);
	const char *stop; // NULL: none
	int64_t count;
	uint64_t *arrival_ns;
};

// Whether requests are still to be served: after the end those that wait are, for a while. Best-effort programs go on
// for as long as latency-critical ones still serve such requests, which would otherwise find the GPU free, and no longer.
static bool goes_on(const struct evaluation_go *go)
{
	uint64_t now = monotonic_ns();
	return now < go->end || (now < go->end + DRAIN_NS && !(go->stop && access(go->stop, F_OK) == 0));
}

// Requests back to back from the start on; one that is under way at the end counts in proportion.
static void serve_continuously(const struct evaluation_work *work, const struct evaluation_go *go)
{
	double completed = 0;
	wait_for(go->start);
	uint64_t before, after = monotonic_ns();
	do {
		before = after;
		work->request();
		after = monotonic_ns();
		if (before >= go->end)
			continue;
		completed += after <= go->end ? 1 : (double)(go->end - before) / (after - before);
	} while (goes_on(go));
	printf("{\"completed\":%.3f", completed);
}

// The kernel's counts for the calling thread.
struct scheduled {
	uint64_t delay_ns; // that it waited for a processor; 0 where the kernel does not count it
	uint64_t switches; // away from it that it did not ask for
};

static struct scheduled scheduled_so_far(void)
{
	static int file = -2;
	struct scheduled now = {0};
	char text[96];
	struct rusage usage;
	if (file == -2)
		file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
	unsigned long long ran, delay;
	if (length > 0) {
		text[length] = 0;
		if (sscanf(text, "%llu %llu", &ran, &delay) == 2)
			now.delay_ns = delay;
	}
	if (getrusage(RUSAGE_THREAD, &usage) == 0)
		now.switches = usage.ru_nivcsw;
	return now;
}

static uint64_t *list_of(int64_t count)
{
	uint64_t *list = calloc(count + 1, sizeof *list);
	if (!list)
		fail("no memory for %lld requests", (long long)count);
	return list;
}

// A request is served when it arrives or, if others are still before it, after them; none is dropped. Requests that arrived in time and
// found no end are counted.
static void serve_arrivals(const struct evaluation_work *work, const struct evaluation_go *go)
{
	uint64_t *submitted = list_of(go->count), *done = list_of(go->count);
	uint64_t *queued = list_of(go->count), *delay = list_of(go->count), *switches = list_of(go->count);
	uint64_t *arrived = list_of(go->count);
	bool trace = getenv("GPREEMPT_BENCH_TRACE"), closed = number("closed", 0);
	int64_t served = 0, in_time = 0;
	uint64_t last = go->start; // the end of the request before
	struct scheduled before = scheduled_so_far();
	for (; served < go->count && goes_on(go); served++) {
		uint64_t arrival = go->start + go->arrival_ns[served];
		if (closed && served)
			arrival = last + go->arrival_ns[served] - go->arrival_ns[served - 1];
		if (closed && arrival >= go->end)
			break;
		arrived[served] = arrival - go->start;
		wait_for(arrival);
		if (go->hint)
			go->hint(go->prepare_ns / 1000, 1);
		for (uint64_t from = monotonic_ns(); go->prepare_ns && monotonic_ns() - from < go->prepare_ns;)
			;
		submitted[served] = monotonic_ns() - arrival;
		queued_ns = 0;
		work->request();
		uint64_t now = monotonic_ns();
		done[served] = now - arrival;
		last = now;
		in_time += now <= go->end;
		if (!trace)
			continue;
		queued[served] = queued_ns ? queued_ns - arrival : 0;
		struct scheduled after = scheduled_so_far(); // since the request before
		delay[served] = after.delay_ns - before.delay_ns;
		switches[served] = after.switches - before.switches;
		before = after;
	}
	printf("{\"completed\":%lld,\"unserved\":%lld", (long long)in_time, (long long)(closed ? 0 : go->count - served));
	if (closed)
		print_list(",\"arrival_ns\"", arrived, served);
	print_list(",\"submitted_ns\"", submitted, served);
	print_list(",\"done_ns\"", done, served);
	if (trace) {
		print_list(",\"queued_ns\"", queued, served);
		print_list(",\"delay_ns\"", delay, served);
		print_list(",\"switches\"", switches, served);
	}
	free(submitted), free(done), free(queued), free(delay), free(switches), free(arrived);
}

// The next word of an order as a number.
static long long next_number(char **rest, const char *what)
{
	char *word = strtok_r(NULL, " ", rest), *end;
	long long value = word ? strtoll(word, &end, 10) : 0;
	if (!word || end == word || *end)
		fail("order go: %s is missing or no number", what);
	return value;
}

// Reads an order, which what is returned points into.
static struct evaluation_go read_go(char *order)
{
	char *rest;
	const char *name = strtok_r(order, " ", &rest);
	if (!name || strcmp(name, "go"))
		fail("order %.40s: expected go", name ? name : "");
	struct evaluation_go go = {0};
	go.start = next_number(&rest, "START_NS");
	go.end = next_number(&rest, "END_NS");
	go.prepare_ns = next_number(&rest, "PREPARE_NS");
	if (next_number(&rest, "HINT"))
		go.hint = find_hint();
	go.stop = strtok_r(NULL, " ", &rest);
	if (!go.stop)
		fail("order go: STOP is missing");
	if (!strcmp(go.stop, "-"))
		go.stop = NULL;
	go.count = next_number(&rest, "N");
	if (go.count < 0)
		return go;
	go.arrival_ns = list_of(go.count);
	for (int64_t i = 0; i < go.count; i++)
		go.arrival_ns[i] = next_number(&rest, "ARRIVAL_NS");
	return go;
}

static void command_evaluate(void)
{
	const char *name = option("work");
	const struct evaluation_work *work = NULL;
	for (size_t i = 0; name && i < sizeof evaluation_works / sizeof *evaluation_works; i++)
		if (!strcmp(name, evaluation_works[i].name))
			work = &evaluation_works[i];
	if (!work)
		fail("--work %s: no such work", name ? name : "");
	set_up(CU_CTX_SCHED_AUTO);
	work->set_up();
	for (int i = 0; i < WARM_UP_REQUESTS; i++)
		work->request();
	uint64_t expected = work->hash ? work->hash() : 0;
	answer("{}");
	for (char *order; (order = next_order());) {
		struct evaluation_go go = read_go(order);
		if (go.count < 0)
			serve_continuously(work, &go);
		else
			serve_arrivals(work, &go);
		printf(",\"hinted\":%s", go.hint ? "true" : "false");
		if (work->hash)
			printf(",\"identical\":%s", work->hash() == expected ? "true" : "false");
		answer("}");
		free(go.arrival_ns);
	}
}
