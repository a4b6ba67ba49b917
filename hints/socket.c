// socket.c - data that arrives on a stream socket, as an announcement of work.
//
// Which sockets matter and how long before the work their data comes is learnt by server port (or path), and
// by connection: a server's metrics may be asked for on the port of its requests.
#define _GNU_SOURCE
#include "hints/source.h"
#include "preempt/process/process.h"
#include "hints/socket_hooks.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const uint64_t NEW_REQUEST_NS = 50 * 1000 * 1000; // data after so long belongs to another request

// A descriptor is of a kind that has to be learnt. A thread of the program makes no call of the system to learn it: filters of system
// calls may end that for what the program itself does not call. It marks the descriptor as ASKED, and the learner looks, since it runs
// when work came, and before work nothing is to be announced. A connection that is accepted has the key of the socket that listened.
//
// Writers: threads of the program (UNKNOWN to ASKED; anything to UNKNOWN of the next generation as the descriptor is closed), and the
// learner (ASKED to what it found). Readers: threads of the program. Pairing: each writer changes the word as a whole, if it is still
// what the writer read. Otherwise, what was found of a descriptor that was closed meanwhile would be taken for its next file.
enum kind { UNKNOWN, ASKED, OTHER, STREAM, LISTENER };

union file {
	struct {
		uint64_t kind : 3;     // enum kind
		uint64_t accepted : 1; // by this process: its own port is the server's
		uint64_t generation : 20;
		uint64_t key : 40;
	};
	uint64_t word;
};

static struct connection {
	_Atomic uint64_t file;         // union file
	_Atomic uint64_t likely;       // ppm + 1, above the generation that it is of; 0: not known
	_Atomic uint32_t arrivals;     // when it announced last: how many requests had come,
	_Atomic uint64_t announced_ns; // and when that was
} connection[GP_FDS];

static _Atomic uint64_t asked[GP_FDS / 64]; // bit set; a bit is set after the state

static union file file_of(int fd) { return (union file){.word = connection[fd].file}; }

static bool change(int fd, union file from, union file to)
{
	return atomic_compare_exchange_strong(&connection[fd].file, &from.word, to.word);
}

static uint64_t hash(uint64_t seed, const void *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++) // FNV-1a
		seed = (seed ^ ((const unsigned char *)bytes)[i]) * 1099511628211ull;
	return seed;
}

static const uint64_t HASH = 14695981039346656037ull;

// The key of an inet connection is the server's port. Where it is not known which side that is, it is the lower port: clients
// have ephemeral ones.
static uint64_t inet_key(int fd, bool accepted)
{
	struct sockaddr_storage a;
	uint16_t port[2] = {0, UINT16_MAX};

	for (int side = 0; side < 2 - accepted; side++) {
		socklen_t size = sizeof a;
		if ((side ? getpeername : getsockname)(fd, (struct sockaddr *)&a, &size))
			return 0;
		port[side] = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port :
							    ((struct sockaddr_in6 *)&a)->sin6_port);
	}
	return hash(HASH, port[0] < port[1] ? &port[0] : &port[1], sizeof *port);
}

static uint64_t unix_key(int fd)
{
	struct sockaddr_un a;
	struct stat st;
	socklen_t size = sizeof a;
	const socklen_t nameless = offsetof(struct sockaddr_un, sun_path);

	if (!getsockname(fd, (struct sockaddr *)&a, &size) && size > nameless && size <= sizeof a)
		return hash(HASH, a.sun_path, size - nameless);
	size = sizeof a;
	if (!getpeername(fd, (struct sockaddr *)&a, &size) && size > nameless && size <= sizeof a)
		return hash(HASH, a.sun_path, size - nameless);
	return fstat(fd, &st) ? 0 : hash(HASH, &st.st_ino, sizeof st.st_ino); // a pair
}

static int option(int fd, int name)
{
	int value = 0;
	socklen_t size = sizeof value;
	return getsockopt(fd, SOL_SOCKET, name, &value, &size) ? -1 : value;
}

// MSG_PEEK would take the socket's pending error away from the program.
static bool has_data(int fd)
{
	int bytes = 0;
	return !syscall(SYS_ioctl, fd, FIONREAD, &bytes) && bytes > 0;
}

static uint64_t key_of(int fd, bool accepted)
{
	switch (option(fd, SO_DOMAIN)) {
	case AF_INET:
	case AF_INET6: return inet_key(fd, accepted);
	case AF_UNIX: return unix_key(fd);
	default: return 0;
	}
}

static void look(int fd)
{
	union file asked_for = file_of(fd), found = asked_for;
	if (asked_for.kind != ASKED)
		return;
	errno = 0;
	int type = option(fd, SO_TYPE);
	bool closed = type < 0 && errno == EBADF; // its next owner asks anew
	bool listens = type == SOCK_STREAM && option(fd, SO_ACCEPTCONN);
	found.key = type == SOCK_STREAM ? key_of(fd, found.accepted || listens) : 0;
	found.kind = closed ? UNKNOWN : !found.key ? OTHER : listens ? LISTENER : STREAM;
	change(fd, asked_for, found);
}

void gp_sockets_look(void)
{
	for (int i = 0; i < GP_FDS / 64; i++)
		for (uint64_t m = asked[i] ? atomic_exchange(&asked[i], 0) : 0; m; m &= m - 1)
			look(i * 64 + __builtin_ctzll(m));
}

static void ask(int fd, union file is)
{
	union file to = is;
	to.kind = ASKED;
	if (change(fd, is, to))
		atomic_fetch_or(&asked[fd / 64], 1ull << fd % 64);
}

// Only the first data of a request announces it. More data belongs to the same request until work has come.
static bool announces(struct connection *c, uint64_t now)
{
	uint32_t arrivals = gp_arrivals.count;
	uint64_t last = c->announced_ns;

	if (last && c->arrivals == arrivals && now - last < NEW_REQUEST_NS)
		return false;
	if (!__atomic_compare_exchange_n((uint64_t *)&c->announced_ns, &last, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	c->arrivals = arrivals;
	return true;
}

// Data was read, or may be read (ready) from fd. errno is kept by the caller.
static void readable(int fd, bool ready)
{
	if (fd < 0 || fd >= GP_FDS)
		return;
	struct connection *c = &connection[fd];
	union file is = file_of(fd);
	if (is.kind == UNKNOWN)
		ask(fd, is);
	if (is.kind != STREAM)
		return;
	uint64_t now = gp_now_ns();
	// An end of file makes a socket ready too.
	if (ready && !has_data(fd))
		return;
	if (!announces(c, now))
		return;
	uint32_t estimate = gp_estimate_for(is.key, now);
	uint64_t likely = c->likely;
	bool known = likely && (uint32_t)likely == is.generation;
	gp_announce(GP_HINT_SOCKET, estimate, is.key, (uint32_t)fd, is.generation,
		    known ? (uint32_t)(likely >> 32) - 1 : UINT32_MAX, now);
}

static void closed(int fd)
{
	if (fd < 0 || fd >= GP_FDS)
		return;
	union file is = file_of(fd);
	if (is.kind == UNKNOWN && !is.accepted)
		return;
	connection[fd].announced_ns = 0;
	while (!change(fd, is, (union file){.generation = is.generation + 1ull}))
		is = file_of(fd);
}

static void accepted(int fd, int listener)
{
	if (fd >= GP_FDS)
		return;
	closed(fd); // not every close is seen
	union file is = file_of(fd), to = is, from = {.kind = OTHER};
	if (listener >= 0 && listener < GP_FDS && (from = file_of(listener)).kind == UNKNOWN)
		ask(listener, from);
	to.accepted = 1;
	to.kind = from.kind == LISTENER ? STREAM : UNKNOWN;
	to.key = from.kind == LISTENER ? from.key : 0;
	change(fd, is, to);
}

void gp_connection_likely(uint32_t fd, uint32_t generation, uint32_t likely_ppm)
{
	if (fd < GP_FDS) // for the next file of the descriptor it says nothing
		connection[fd].likely = (likely_ppm + 1ull) << 32 | generation;
}

static const struct gp_socket_hooks hooks = {readable, closed, accepted};

const void *gp_socket_hooks_table(void) { return &hooks; }
