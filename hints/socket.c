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
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const uint64_t NEW_REQUEST_NS = 50 * 1000 * 1000; // data after so long belongs to another request

enum { UNKNOWN, OTHER, STREAM };

static struct connection {
	_Atomic uint32_t kind, generation, accepted;
	_Atomic uint64_t key;
	_Atomic uint32_t estimate;
	_Atomic uint32_t likely_ppm;   // UINT32_MAX: not known
	_Atomic uint32_t arrivals;     // when it announced last: how many requests had come,
	_Atomic uint64_t announced_ns; // and when that was
} connection[GP_FDS];

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

static uint32_t look(int fd, struct connection *c)
{
	int domain;
	uint64_t key = 0;

	errno = 0;
	int type = option(fd, SO_TYPE);
	if (type < 0 && errno == EBADF)
		return OTHER; // closed meanwhile: the descriptor's next owner is looked at anew
	if (type == SOCK_STREAM && !option(fd, SO_ACCEPTCONN)) {
		domain = option(fd, SO_DOMAIN);
		if (domain == AF_INET || domain == AF_INET6)
			key = inet_key(fd, c->accepted);
		else if (domain == AF_UNIX)
			key = unix_key(fd);
	}
	c->key = key;
	c->likely_ppm = UINT32_MAX;
	c->announced_ns = 0;
	c->kind = key ? STREAM : OTHER;
	return c->kind;
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
	uint32_t kind = c->kind;
	if (kind == UNKNOWN)
		kind = look(fd, c);
	if (kind != STREAM)
		return;
	uint64_t now = gp_now_ns();
	// An end of file makes a socket ready too.
	if (ready && !has_data(fd))
		return;
	if (!announces(c, now))
		return;
	uint32_t estimate = gp_estimate_for(c->key, now);
	gp_announce(GP_HINT_SOCKET, estimate, c->key, (uint32_t)fd, c->generation, c->likely_ppm, now);
}

static void closed(int fd)
{
	if (fd < 0 || fd >= GP_FDS)
		return;
	connection[fd].accepted = 0;
	if (connection[fd].kind == UNKNOWN)
		return;
	connection[fd].generation++;
	connection[fd].kind = UNKNOWN;
}

static void accepted(int fd)
{
	closed(fd); // not every close is seen
	if (fd < GP_FDS)
		connection[fd].accepted = 1;
}

void gp_connection_likely(uint32_t fd, uint32_t generation, uint32_t likely_ppm)
{
	if (fd < GP_FDS && connection[fd].generation == generation)
		connection[fd].likely_ppm = likely_ppm;
}

static const struct gp_socket_hooks hooks = {readable, closed, accepted};

const void *gp_socket_hooks_table(void) { return &hooks; }
