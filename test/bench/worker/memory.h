// Programs with much device memory, of the suite memory. Included by worker.c.
//
//   hold --bytes N [--piece N] [--fewer 1] [--most N]
//                                holds N bytes of known contents, in pieces: the first ones alone, where it gets no more, or those are the
//                                most. It answers init with their count, bytes. A step changes every word of them in place. It serves
//       start, stop          steps without a pause
//       steps N              so many steps: began_ns, ended_ns
//       sum                  a checksum of all contents: sum
//       grow N, shrink       allocates N bytes more, and uses them: ns, and error, the driver's; frees them
//       serve                a TCP port on which each line is a request of one step, and is answered by one
//   copies --bytes N         moves N bytes between the device and pinned host memory. It serves
//       copy to|from|both    to_ns, from_ns
#include <netinet/in.h>
#include <sys/socket.h>

enum { MOST_PIECES = 4096, STAGING = 64 << 20, SUMMERS = 8, OUT_OF_MEMORY = 2 }; // the last as CUDA has it
static const size_t MOST_PINNED = 2ull << 30;                                    // at a time, of copies

static struct {
	CUcontext context;
	CUdeviceptr piece[MOST_PIECES];
	size_t bytes[MOST_PIECES], count;
	CUdeviceptr grown[MOST_PIECES];
	size_t grown_count;
	CUfunction mix;
	uint64_t *staging; // on the host
	pthread_mutex_t stepping;
} held = {.stepping = PTHREAD_MUTEX_INITIALIZER};

// The first contents of a piece: the same in each process, and different in each word.
static void fill_staging(uint64_t seed, size_t bytes)
{
	for (size_t i = 0; i < bytes / sizeof *held.staging; i++)
		held.staging[i] = (seed + i) * 0x9e3779b97f4a7c15ull;
}

// Returns how many bytes it holds.
static size_t hold_memory(size_t bytes, size_t piece, bool fewer)
{
	size_t at = 0;
	for (; at < bytes; at += held.bytes[held.count++]) {
		size_t size = bytes - at < piece ? bytes - at : piece;
		if (held.count == MOST_PIECES)
			fail("--piece %zu: more than %d pieces", piece, MOST_PIECES);
		CUresult result = cuMemAlloc_v2(&held.piece[held.count], size);
		if (result == OUT_OF_MEMORY && fewer && held.count)
			break;
		CHECK(result);
		held.bytes[held.count] = size;
	}
	for (size_t i = 0; i < held.count; i++) {
		fill_staging(i, held.bytes[i] < STAGING ? held.bytes[i] : STAGING);
		for (size_t at = 0; at < held.bytes[i]; at += STAGING) {
			size_t size = held.bytes[i] - at < STAGING ? held.bytes[i] - at : STAGING;
			CHECK(cuMemcpyHtoD_v2(held.piece[i] + at, held.staging, size));
		}
	}
	return at;
}

static void step(void)
{
	uint32_t rounds = 1;
	pthread_mutex_lock(&held.stepping);
	for (size_t i = 0; i < held.count; i++) {
		uint32_t words = held.bytes[i] / 4;
		void *parameters[] = {&held.piece[i], &words, &rounds};
		CHECK(cuLaunchKernel(held.mix, 8 * multiprocessors, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
	}
	CHECK(cuStreamSynchronize(stream));
	pthread_mutex_unlock(&held.stepping);
}

static struct {
	_Atomic bool stop, under_way;
	pthread_t thread;
	uint64_t *times;
	size_t count, room;
} running;

static void *keep_stepping(void *unused)
{
	CHECK(cuCtxSetCurrent(held.context));
	running.count = 0;
	while (!running.stop || running.count < 2) {
		if (running.count)
			step();
		if (running.count == running.room) {
			running.room = running.room ? 2 * running.room : 4096;
			running.times = realloc(running.times, running.room * sizeof *running.times);
			if (!running.times)
				fail("no memory for the times of steps");
		}
		running.times[running.count++] = monotonic_ns();
		running.under_way = running.count > 1;
	}
	return unused;
}

static void start_steps(void)
{
	running.stop = running.under_way = false;
	if (pthread_create(&running.thread, NULL, keep_stepping, NULL))
		fail("start a thread: %s", strerror(errno));
	while (!running.under_way)
		sleep_ns(100000);
	answer("{}");
}

static void stop_steps(void)
{
	running.stop = true;
	pthread_join(running.thread, NULL);
	print_list("{\"times_ns\"", running.times, running.count);
	printf(",\"counts\":[");
	for (size_t i = 0; i < running.count; i++)
		printf("%s%zu", i ? "," : "", i);
	answer("]}");
}

static void some_steps(uint64_t count)
{
	uint64_t began = monotonic_ns();
	for (uint64_t i = 0; i < count; i++)
		step();
	printf("{\"began_ns\":%llu,\"ended_ns\":%llu}\n", (unsigned long long)began, (unsigned long long)monotonic_ns());
}

// A thread that sums each SUMMERS-th piece, by its own part of the staging memory. One thread is slower than the bus.
struct summer {
	pthread_t thread;
	size_t first;
	uint64_t lane[4];
};

static void *sum_pieces(void *argument)
{
	struct summer *s = argument;
	size_t part = STAGING / SUMMERS;
	uint64_t *staging = held.staging + s->first * part / sizeof *staging;
	CHECK(cuCtxSetCurrent(held.context));
	for (size_t i = s->first; i < held.count; i += SUMMERS)
		for (size_t at = 0; at < held.bytes[i]; at += part) {
			size_t size = held.bytes[i] - at < part ? held.bytes[i] - at : part;
			CHECK(cuMemcpyDtoH_v2(staging, held.piece[i] + at, size));
			for (size_t w = 0; w + 4 <= size / sizeof *staging; w += 4)
				for (int l = 0; l < 4; l++)
					s->lane[l] = (s->lane[l] ^ staging[w + l]) * 0x9fb21c651e98df25ull;
		}
	return NULL;
}

static void tell_sum(void)
{
	struct summer summers[SUMMERS];
	uint64_t lane[4] = {1, 2, 3, 4};
	for (size_t i = 0; i < SUMMERS; i++) {
		summers[i] = (struct summer){.first = i, .lane = {1, 2, 3, 4}};
		if (pthread_create(&summers[i].thread, NULL, sum_pieces, &summers[i]))
			fail("start a thread: %s", strerror(errno));
	}
	for (size_t i = 0; i < SUMMERS; i++) {
		pthread_join(summers[i].thread, NULL);
		for (int l = 0; l < 4; l++)
			lane[l] = (lane[l] ^ summers[i].lane[l]) * 0x9fb21c651e98df25ull;
	}
	printf("{\"sum\":\"%016llx%016llx\"}\n", (unsigned long long)(lane[0] ^ lane[1] >> 1),
	       (unsigned long long)(lane[2] ^ lane[3] >> 1));
}

static void grow(size_t bytes)
{
	size_t piece = 1 << 30;
	uint64_t began = monotonic_ns();
	CUresult error = 0;
	for (size_t at = 0; at < bytes && !error; at += piece) {
		size_t size = bytes - at < piece ? bytes - at : piece;
		if (held.grown_count == MOST_PIECES)
			fail("grow %zu: more than %d pieces", bytes, MOST_PIECES);
		error = cuMemAlloc_v2(&held.grown[held.grown_count], size);
		if (!error)
			CHECK(cuMemsetD8Async(held.grown[held.grown_count++], 1, size, stream));
	}
	CHECK(cuStreamSynchronize(stream));
	printf("{\"ns\":%llu,\"error\":%d}\n", (unsigned long long)(monotonic_ns() - began), (int)error);
}

static void shrink(void)
{
	while (held.grown_count)
		CHECK(cuMemFree_v2(held.grown[--held.grown_count]));
	answer("{}");
}

// One client after the other.
static void *serve_requests(void *listening)
{
	char letter;
	CHECK(cuCtxSetCurrent(held.context));
	for (;;) {
		int client = accept((int)(intptr_t)listening, NULL, NULL);
		if (client < 0)
			fail("accept: %s", strerror(errno));
		while (recv(client, &letter, 1, 0) == 1) {
			if (letter != '\n')
				continue;
			step();
			if (send(client, "\n", 1, MSG_NOSIGNAL) != 1)
				break;
		}
		close(client);
	}
	return NULL;
}

static void serve(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	pthread_t thread;
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 8) ||
	    getsockname(listening, (struct sockaddr *)&address, &length) ||
	    pthread_create(&thread, NULL, serve_requests, (void *)(intptr_t)listening))
		fail("serve: %s", strerror(errno));
	printf("{\"port\":%d}\n", ntohs(address.sin_port));
}

static void command_hold(void)
{
	set_up(CU_CTX_SCHED_AUTO);
	CHECK(cuCtxGetCurrent(&held.context));
	held.mix = function("bench_mix");
	CHECK(cuMemHostAlloc((void **)&held.staging, STAGING, 0));
	size_t bytes = number("bytes", 1 << 20) / 4096 * 4096, piece = number("piece", 1 << 30) / 4096 * 4096;
	if (!piece)
		fail("--piece %zu: cannot hold that", piece);
	size_t most = number("most", bytes), holds = hold_memory(most < bytes ? most : bytes, piece, number("fewer", 0));
	step();
	printf("{\"bytes\":%zu}\n", holds);
	for (const char *order; (order = next_order());) {
		uint64_t value = 0;
		char word[16] = "";
		sscanf(order, "%15s %llu", word, (unsigned long long *)&value);
		if (!strcmp(word, "start"))
			start_steps();
		else if (!strcmp(word, "stop"))
			stop_steps();
		else if (!strcmp(word, "steps"))
			some_steps(value);
		else if (!strcmp(word, "sum"))
			tell_sum();
		else if (!strcmp(word, "grow"))
			grow(value);
		else if (!strcmp(word, "shrink"))
			shrink();
		else if (!strcmp(word, "serve"))
			serve();
		else
			fail("order %.40s: not known", order);
	}
}

// A direction of copies: the same pinned memory again and again, until all bytes have been moved.
struct direction {
	bool from_device;
	CUdeviceptr device;
	char **pinned;
	size_t pieces, piece, bytes;
	CUstream stream;
	uint64_t ns;
	pthread_t thread;
};

static void *copy_bytes(void *argument)
{
	struct direction *d = argument;
	CHECK(cuCtxSetCurrent(held.context));
	uint64_t began = monotonic_ns();
	for (size_t at = 0, i = 0; at < d->bytes; at += d->piece, i = (i + 1) % d->pieces) {
		size_t size = d->bytes - at < d->piece ? d->bytes - at : d->piece;
		if (d->from_device)
			CHECK(cuMemcpyDtoHAsync_v2(d->pinned[i], d->device + i * d->piece, size, d->stream));
		else
			CHECK(cuMemcpyHtoDAsync_v2(d->device + i * d->piece, d->pinned[i], size, d->stream));
	}
	CHECK(cuStreamSynchronize(d->stream));
	d->ns = monotonic_ns() - began;
	return NULL;
}

static void prepare_direction(struct direction *d, bool from_device, size_t bytes)
{
	*d = (struct direction){.from_device = from_device, .piece = 256 << 20, .bytes = bytes};
	size_t pinned = bytes < MOST_PINNED ? bytes : MOST_PINNED;
	if (d->piece > pinned)
		d->piece = pinned;
	d->pieces = pinned / d->piece;
	d->pinned = calloc(d->pieces, sizeof *d->pinned);
	if (!d->pinned)
		fail("no memory");
	for (size_t i = 0; i < d->pieces; i++)
		CHECK(cuMemHostAlloc((void **)&d->pinned[i], d->piece, 0));
	CHECK(cuMemAlloc_v2(&d->device, d->pieces * d->piece));
	CHECK(cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING));
}

static void command_copies(void)
{
	struct direction both[2];
	set_up(CU_CTX_SCHED_AUTO);
	CHECK(cuCtxGetCurrent(&held.context));
	size_t bytes = number("bytes", 1 << 20) / 4096 * 4096;
	if (!bytes)
		fail("--bytes: nothing to copy");
	for (int i = 0; i < 2; i++)
		prepare_direction(&both[i], i == 1, bytes);
	answer("{}");
	for (const char *order; (order = next_order());) {
		bool wanted[2] = {strcmp(order, "copy from") != 0, strcmp(order, "copy to") != 0};
		if (strncmp(order, "copy ", 5))
			fail("order %.40s: not known", order);
		for (int i = 0; i < 2; i++) {
			both[i].ns = 0;
			if (wanted[i] && pthread_create(&both[i].thread, NULL, copy_bytes, &both[i]))
				fail("start a thread: %s", strerror(errno));
		}
		for (int i = 0; i < 2; i++)
			if (wanted[i])
				pthread_join(both[i].thread, NULL);
		printf("{\"to_ns\":%llu,\"from_ns\":%llu}\n", (unsigned long long)both[0].ns,
		       (unsigned long long)both[1].ns);
	}
}
