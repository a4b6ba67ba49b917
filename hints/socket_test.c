// socket_test.c - with hints/socket.c hints/source.c hints/bridge.c.
//
// Descriptors, places and numbers that are used again: what was found of the file, key or announcement before is not taken for the next
// one's. Ends well or says what is wrong.
#define _GNU_SOURCE
#include "hints/bridge.h"
#include "hints/socket_hooks.h"
#include "hints/source.h"
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { LIKELY = 700 * 1000, UNLIKELY = 1, GENERATIONS = 1 << 20 };
static const uint64_t ANOTHER_REQUEST = 60 * 1000 * 1000;

// Stands in for other files.
struct gp_arrivals gp_arrivals;
uint64_t gp_taking_longest_ns(void) { return 0; }
static uint64_t now = 1000 * 1000 * 1000;
uint64_t gp_now_ns(void) { return now; }

static void (*meanwhile)(void); // while the system is asked about a descriptor
int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	void (*what)(void) = meanwhile;
	meanwhile = NULL;
	if (what)
		what();
	return (int)syscall(SYS_getsockopt, fd, level, name, value, size);
}

static uint32_t hints;
static double confidence; // of the latest one
void gp_hint(enum gp_hint_source source, uint64_t start, uint64_t valid, double is)
{
	CHECK(source == GP_HINT_SOCKET);
	hints++;
	confidence = is;
}

static const struct gp_socket_hooks *hooks;

// The announcement that data of another request leads to; NULL: none.
static const struct gp_announcement *announced(int fd)
{
	uint32_t before = gp_announcements;
	now += ANOTHER_REQUEST;
	hooks->readable(fd, false);
	CHECK(gp_announcements - before < 2);
	return gp_announcements == before ? NULL : &gp_announcement[before % GP_ANNOUNCEMENTS];
}

// It is asked about and known from here on.
static const struct gp_announcement *learn(int fd)
{
	CHECK(!announced(fd)); // nothing is announced before it is known
	gp_sockets_look();
	return announced(fd);
}

static void becomes(int fd, int made)
{
	CHECK(dup2(made, fd) == fd);
	close(made);
}

static void become_pair(const int fd[2])
{
	int made[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, made));
	becomes(fd[0], made[0]);
	becomes(fd[1], made[1]);
}

static int pair[2] = {100, 101};

// The next file of a descriptor is asked about anew, and has nothing that the one before had.
static void descriptors(void)
{
	become_pair(pair);
	const struct gp_announcement *a = learn(pair[0]);
	CHECK(a && a->fd == (uint32_t)pair[0]);
	uint32_t generation = a->generation;
	uint64_t key = a->key;
	gp_estimate_set(a->estimate, key, 1, 1, 1000 * 1000);
	gp_connection_likely((uint32_t)pair[0], generation, LIKELY);
	CHECK(announced(pair[0]) && hints && confidence == LIKELY / 1e6);

	hooks->closed(pair[0]);
	become_pair(pair);
	CHECK((a = learn(pair[0])) && a->key != key);
	CHECK(a->generation != generation);
	generation = a->generation;
	gp_estimate_set(a->estimate, a->key, 1, 1, 1000 * 1000);
	CHECK(announced(pair[0]) && confidence == 1);                      // of this one only its kind is known
	gp_connection_likely((uint32_t)pair[0], generation - 1, UNLIKELY); // said late of the one before
	CHECK(announced(pair[0]) && confidence == 1);
	gp_connection_likely((uint32_t)pair[0], generation, LIKELY);
	CHECK(announced(pair[0]) && confidence == LIKELY / 1e6);

	hooks->closed(pair[0]);
	becomes(pair[0], open("/dev/null", O_RDONLY)); // no socket any more
	CHECK(!learn(pair[0]));
	hooks->closed(pair[0]);
	become_pair(pair);
	CHECK(learn(pair[0]));
}

// The number of the generation begins anew, and takes no other field along.
static void generations(void)
{
	int fd = pair[0];
	hooks->closed(fd);
	become_pair(pair);
	const struct gp_announcement *a = learn(fd);
	CHECK(a);
	uint32_t first = a->generation, last = first;
	do {
		hooks->closed(fd);
		hooks->readable(fd, false); // one that is not known yet
		last = (last + 1) % GENERATIONS;
	} while (last != (first + GENERATIONS - 1) % GENERATIONS);
	gp_sockets_look();
	become_pair(pair);
	a = announced(fd);
	CHECK(a && a->generation == last && a->fd == (uint32_t)fd);
	hooks->closed(fd);
	CHECK((a = learn(fd)) && a->generation == first);
}

static void is_closed(void)
{
	hooks->closed(pair[0]);
	become_pair(pair);
}

// A descriptor is closed while the system is asked about it, and its number is the next file's.
static void looks(void)
{
	is_closed();
	CHECK(!announced(pair[0]));
	meanwhile = is_closed;
	gp_sockets_look();
	CHECK(!meanwhile);
	CHECK(!announced(pair[0])); // what was found is not the next file's
	gp_sockets_look();
	CHECK(announced(pair[0]));
}

// A connection has the key of the socket that took it, and no key of its descriptor's former use.
static void listeners(void)
{
	enum { LISTENER = 110, ACCEPTED = 111, OTHER = 112 };
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	becomes(LISTENER, socket(AF_INET, SOCK_STREAM, 0));
	CHECK(!bind(LISTENER, (struct sockaddr *)&address, size) && !listen(LISTENER, 4));
	CHECK(!getsockname(LISTENER, (struct sockaddr *)&address, &size));
	uint64_t key = 0;
	for (int i = 0; i < 3; i++) {
		int client = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(client, (struct sockaddr *)&address, size));
		becomes(ACCEPTED, accept(LISTENER, NULL, NULL));
		hooks->accepted(ACCEPTED, LISTENER); // its close before was not seen
		const struct gp_announcement *a = i ? announced(ACCEPTED) : learn(ACCEPTED); // then the listener is known
		CHECK(a && (!key || a->key == key) && a->generation == (uint32_t)i);
		key = a->key;
		close(client);
	}
	CHECK(!announced(LISTENER)); // it gets no data
	hooks->closed(ACCEPTED);
	becomes(OTHER, dup(pair[1]));
	hooks->accepted(OTHER, -1);
	const struct gp_announcement *a = learn(OTHER);
	CHECK(a && a->key != key);
	uint32_t generation = a->generation;
	hooks->accepted(GP_FDS, LISTENER);
	hooks->accepted(OTHER, GP_FDS);
	hooks->closed(OTHER); // before anybody knew it: the next file is not one that was accepted
	CHECK((a = learn(OTHER)) && a->generation == generation + 2);
}

// The key of a path, or of an abstract name as here, is of all of it.
static uint64_t key_of_name(char last)
{
	enum { LISTENER = 120, ACCEPTED = 121, NAME = 12 };
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const socklen_t size = offsetof(struct sockaddr_un, sun_path) + NAME;
	snprintf(address.sun_path + 1, NAME, "gp%08x", (uint32_t)getpid());
	address.sun_path[NAME - 1] = last;
	becomes(LISTENER, socket(AF_UNIX, SOCK_STREAM, 0));
	CHECK(!bind(LISTENER, (struct sockaddr *)&address, size) && !listen(LISTENER, 4));
	hooks->closed(LISTENER);
	int client = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(!connect(client, (struct sockaddr *)&address, size));
	becomes(ACCEPTED, accept(LISTENER, NULL, NULL));
	hooks->accepted(ACCEPTED, LISTENER);
	const struct gp_announcement *a = learn(ACCEPTED);
	CHECK(a);
	close(client);
	return a->key;
}

static void names(void)
{
	uint64_t a = key_of_name('a');
	CHECK(key_of_name('b') != a && key_of_name('a') == a);
}

// A descriptor that is closed when it is looked at is asked about anew, also where its next file is not seen to come.
static void unseen(void)
{
	hooks->closed(pair[0]);
	close(pair[0]);
	CHECK(!learn(pair[0]));
	become_pair(pair);
	CHECK(learn(pair[0]));
}

static struct gp_announcement_taken taken(uint32_t i)
{
	struct gp_announcement_taken a;
	gp_announcements_take(i, &a);
	return a;
}

// Data announces once, until work came or the time of a request has passed.
static void requests(void)
{
	int fd = pair[0];
	is_closed();
	CHECK(learn(fd));
	uint32_t before = gp_announcements;
	hooks->readable(fd, false);
	CHECK(gp_announcements == before);
	gp_arrivals.count++; // another request
	hooks->readable(fd, false);
	CHECK(gp_announcements == before + 1);
	hooks->readable(fd, false);
	CHECK(gp_announcements == before + 1);
	now += ANOTHER_REQUEST;
	hooks->readable(fd, true); // at its end a socket is ready too
	CHECK(gp_announcements == before + 1);
	CHECK(write(pair[1], "x", 1) == 1);
	hooks->readable(fd, true);
	CHECK(gp_announcements == before + 2);
	is_closed(); // the next file's first data is no part of that
	CHECK(!taken(gp_announcements).at_ns);
	before = gp_announcements;
	hooks->readable(fd, false);
	gp_sockets_look();
	hooks->readable(fd, false);
	CHECK(gp_announcements == before + 1);
}

// Descriptors beyond the table, on both sides.
static void bounds(void)
{
	int outside[] = {-1, GP_FDS, 1 << 30};
	for (int i = 0; i < 3; i++) {
		hooks->readable(outside[i], false);
		hooks->accepted(outside[i] < 0 ? GP_FDS : outside[i], outside[i]);
		hooks->closed(outside[i]);
		gp_connection_likely((uint32_t)outside[i], 0, LIKELY);
	}
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	int most = limit.rlim_cur < GP_FDS ? (int)limit.rlim_cur : GP_FDS, last[] = {most - 1, most - 2};
	become_pair(last);
	CHECK(learn(last[0]));
}

// A place of the table of estimates that another key gets says nothing of it, and the least recently used one is it that goes.
static void places(void)
{
	enum { WAYS = 8 };
	uint64_t key[WAYS + 1];
	uint32_t place[WAYS + 1], set = gp_estimate_for(1 << 20, ++now) / WAYS, found = 0;
	for (uint64_t k = 1 << 21; found < WAYS + 1; k++) {
		uint32_t at = gp_estimate_for(k, ++now);
		CHECK(at >= GP_RANGES && at < GP_KEYS); // ranges have places of their own
		if (at / WAYS == set)
			key[found++] = k;
	}
	for (int i = 0; i < WAYS; i++) {
		place[i] = gp_estimate_for(key[i], ++now);
		for (int j = 0; j < i; j++)
			CHECK(place[i] != place[j]);
		gp_estimate_set(place[i], key[i], 1, 1, LIKELY);
	}
	CHECK(gp_estimate_for(key[0], ++now) == place[0] && gp_estimate[place[0]].likely_ppm == LIKELY);
	place[WAYS] = gp_estimate_for(key[WAYS], ++now);
	CHECK(place[WAYS] == place[1] && !gp_estimate[place[1]].likely_ppm);
	gp_estimate_set(place[1], key[1], 1, 1, LIKELY); // said late of the one before
	CHECK(!gp_estimate[place[1]].likely_ppm);
}

// The ring of announcements: the latest are there, each once, those before are lost.
static void ring(void)
{
	enum { MORE = 40 };
	for (uint32_t round = 0; round < 2; round++) {
		uint32_t first = round ? UINT32_MAX - GP_ANNOUNCEMENTS / 2 : gp_announcements; // and the count begins anew
		gp_announcements = first;
		for (uint32_t i = 0; i < GP_ANNOUNCEMENTS + MORE; i++)
			gp_announce(GP_HINT_SOCKET, GP_RANGES, i + 1, i, 0, UINT32_MAX, now + i);
		CHECK(gp_announcements_count() == first + GP_ANNOUNCEMENTS + MORE);
		for (uint32_t i = MORE; i < GP_ANNOUNCEMENTS + MORE; i++) {
			struct gp_announcement_taken a = taken(first + i);
			CHECK(a.at_ns == now + i && a.key == i + 1 && a.fd == i);
		}
		for (uint32_t i = 0; i < GP_ANNOUNCEMENTS + MORE; i++)
			CHECK(!taken(first + i).at_ns);
	}
}

int main(void)
{
	hooks = gp_socket_hooks_table();
	gp_give = gp_hint;
	descriptors();
	generations();
	looks();
	listeners();
	names();
	unseen();
	requests();
	bounds();
	places();
	ring();
	return 0;
}
