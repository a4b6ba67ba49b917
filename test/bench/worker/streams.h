// One process with work that can wait on one stream and urgent work on another. Included by worker.c.
//
// A thread keeps the first stream busy with the kernel that the options describe, two of them in flight. The
// other asks now and then, --requests times: with --preempt 1 it has the first stream stopped (gpreempt.h) and waits
// until nothing of it runs, with --priority 1 its stream has the highest priority; then --urgent-kernels kernels of --urgent-iterations
// and --urgent-blocks run on it, are waited for, and the first stream goes on. With --width the first stream goes on with so many SMs
// meanwhile; with --narrow-us it does so for that long, and its width is then taken away, which is the stop that is timed. With --alone 1
// it has no work.
//
// Prints how long the stops and the kernels took, what a kernel of the first stream takes alone, and how many of those
// completed.
#define GPREEMPT_LEVEL_BLOCK 2 // gpreempt.h

static struct {
	int (*enable)(CUstream, int), (*preempt)(CUstream, int), (*restore)(CUstream, int), (*set_width)(CUstream, int);
} stop_api;

static struct {
	struct work work;
	CUcontext context;
	_Atomic bool ended;
	_Atomic uint64_t completed;
} feeding;

static void find_stop_api(void)
{
	*(void **)&stop_api.enable = dlsym(RTLD_DEFAULT, "gpreempt_stream_enable");
	*(void **)&stop_api.preempt = dlsym(RTLD_DEFAULT, "gpreempt_stream_preempt");
	*(void **)&stop_api.restore = dlsym(RTLD_DEFAULT, "gpreempt_stream_restore");
	*(void **)&stop_api.set_width = dlsym(RTLD_DEFAULT, "gpreempt_stream_set_width");
	if (!stop_api.set_width || !stop_api.enable || !stop_api.preempt || !stop_api.restore)
		fail("the library with gpreempt_stream_preempt is not preloaded");
}

#define CHECK_STOP(call) \
	do { \
		int result_ = (call); \
		if (result_) \
			fail("%s: error %d of gpreempt.h", #call, result_); \
	} while (0)

static void *feed(void *unused)
{
	enum { DEPTH = 2 };
	CUevent event[DEPTH];
	uint64_t launched = 0;
	CHECK(cuCtxSetCurrent(feeding.context));
	for (int i = 0; i < DEPTH; i++)
		CHECK(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
	while (!feeding.ended) {
		launch(&feeding.work);
		CHECK(cuEventRecord(event[launched++ % DEPTH], stream));
		if (launched < DEPTH)
			continue;
		CHECK(cuEventSynchronize(event[launched % DEPTH]));
		feeding.completed++;
	}
	CHECK(cuStreamSynchronize(stream));
	return unused;
}

static void command_streams(void)
{
	set_up(CU_CTX_SCHED_SPIN);
	int least, greatest;
	uint64_t kernels = number("urgent-kernels", 1);
	bool preempting = number("preempt", 0), alone = number("alone", 0);
	uint64_t width = number("width", 0), narrow_ns = number("narrow-us", 0) * 1000;
	const uint64_t warm_up = 20, gap_ns = 2000000, limit_ns = 10000000000;
	uint64_t requests = number("requests", 600), done = 0;
	uint64_t *stop_ns = calloc(requests, sizeof *stop_ns), *latency_ns = calloc(requests, sizeof *latency_ns);
	uint32_t random = 1;
	pthread_t feeder;
	CUstream urgent_stream;
	if (!stop_ns || !latency_ns)
		fail("no memory for %llu requests", (unsigned long long)requests);
	CHECK(cuDevicePrimaryCtxRetain(&feeding.context, device));
	CHECK(cuCtxGetStreamPriorityRange(&least, &greatest));
	CHECK(cuStreamCreateWithPriority(&urgent_stream, CU_STREAM_NON_BLOCKING, number("priority", 0) ? greatest : least));
	feeding.work = work_from_options();
	struct work urgent = feeding.work;
	urgent.blocks = (unsigned)number("urgent-blocks", (uint64_t)multiprocessors);
	urgent.iterations = number("urgent-iterations", 1000);
	if (preempting) {
		find_stop_api();
		CHECK_STOP(stop_api.enable(stream, GPREEMPT_LEVEL_BLOCK));
		CHECK_STOP(stop_api.set_width(stream, (int)width));
	}
	uint64_t kernel_ns = batch_ns(&feeding.work, 4) / 4;
	if (!alone && pthread_create(&feeder, NULL, feed, NULL))
		fail("start a thread: %s", strerror(errno));
	await_begin();

	uint64_t began = monotonic_ns(), start_ns = began, started_with = 0, paused_ns = 0, narrow = 0;
	for (uint64_t i = 0; i < warm_up + requests && !stopped; i++) {
		if (i == warm_up) {
			start_ns = monotonic_ns();
			started_with = feeding.completed;
			paused_ns = narrow = 0;
		}
		sleep_ns(jittered(gap_ns, gap_ns / 4, &random));
		uint64_t asked = monotonic_ns();
		if (preempting)
			CHECK_STOP(stop_api.preempt(stream, 1));
		if (narrow_ns) {
			uint64_t went_on = feeding.completed;
			sleep_ns(jittered(narrow_ns, narrow_ns / 4, &random));
			narrow += feeding.completed - went_on;
			asked = monotonic_ns();
			CHECK_STOP(stop_api.set_width(stream, 0));
			CHECK_STOP(stop_api.preempt(stream, 1));
		}
		uint64_t gone = monotonic_ns();
		void *parameters[] = {&memory, &urgent.iterations};
		for (uint64_t k = 0; k < kernels; k++)
			CHECK(cuLaunchKernel(urgent.function, urgent.blocks, 1, 1, urgent.threads, 1, 1,
					     urgent.shared_bytes, urgent_stream, parameters, NULL));
		CHECK(cuStreamSynchronize(urgent_stream));
		uint64_t end = monotonic_ns();
		if (narrow_ns)
			CHECK_STOP(stop_api.set_width(stream, (int)width));
		if (preempting)
			CHECK_STOP(stop_api.restore(stream, 0));
		paused_ns += end - asked;
		if (i >= warm_up) {
			stop_ns[done] = gone - asked;
			latency_ns[done++] = end - asked;
		}
		if (end > began + limit_ns)
			break;
	}
	uint64_t wall_ns = monotonic_ns() - start_ns, completed = feeding.completed - started_with;
	feeding.ended = true;
	if (!alone)
		pthread_join(feeder, NULL);
	printf("{\"kernel_ns\":%llu,\"completed\":%llu,\"wall_ns\":%llu,\"urgent_ns\":%llu", (unsigned long long)kernel_ns,
	       (unsigned long long)completed, (unsigned long long)wall_ns, (unsigned long long)paused_ns);
	if (narrow_ns)
		printf(",\"narrow\":%llu", (unsigned long long)narrow);
	if (preempting)
		print_list(",\"stops_ns\"", stop_ns, done);
	print_list(",\"latencies_ns\"", latency_ns, done);
	printf("}\n");
}
