// ticket_socket.c - how memory gets from one process to another: as descriptors, over a Unix socket.
//
// A thread of ours sleeps in accept from the first ticket on. The socket has no place in the file system; its name is random, and only
// processes of the same user are served. Each packet is one chunk's descriptor. The process at the other end may lie, hang or die: every
// wait has a limit, and the driver checks descriptors.
#define _GNU_SOURCE
#include "preempt/memory/own.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { LIMIT_s = 5, SHORT_us = 100000 };

static uint8_t process[16];
static int listener = -1;
static struct stat made; // of the listener

static socklen_t name_of(const uint8_t id[16], struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	char *at = address->sun_path + 1; // a name that begins with 0 is no file's
	at += sprintf(at, "gpreempt-ticket-");
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%02x", id[i]);
	return (socklen_t)(at - (char *)address);
}

static int open_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

static void limit_waits(int fd)
{
	struct timeval limit = {.tv_sec = LIMIT_s};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static bool is_same_user(int fd)
{
	struct ucred other;
	socklen_t bytes = sizeof other;
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) && other.uid == geteuid();
}

// Makes the system call itself: this library intercepts libc's functions, and would take a call of them for the program's.
static ssize_t packet(long call, int fd, struct msghdr *m, int flags)
{
	ssize_t done;
	do
		done = syscall(call, fd, m, flags);
	while (done < 0 && errno == EINTR);
	return done;
}

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

// Sends a packet of some bytes, with a descriptor if one is given.
static bool send_packet(int to, const void *data, size_t bytes, int fd)
{
	struct iovec part = {(void *)data, bytes};
	union control control = {.header = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
		m.msg_control = &control;
		m.msg_controllen = sizeof control;
	}
	return packet(SYS_sendmsg, to, &m, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static bool receive_packet(int from, void *data, size_t bytes, int *fd)
{
	struct iovec part = {data, bytes};
	union control control;
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
	m.msg_controllen = CMSG_LEN(sizeof *fd); // one descriptor, where its padding has room for another
	ssize_t got = packet(SYS_recvmsg, from, &m, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	*fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *fd))
		memcpy(fd, CMSG_DATA(c), sizeof *fd);
	return got == (ssize_t)bytes && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
}

static void serve(int client)
{
	uint64_t number;
	int unasked;
	limit_waits(client);
	if (!is_same_user(client))
		return;
	bool sent = receive_packet(client, &number, sizeof number, &unasked);
	if (unasked >= 0)
		close(unasked);
	for (size_t i = 0; sent; i++) {
		int fd = gp_ticket_export(number, i);
		sent = send_packet(client, "", 1, fd) && fd >= 0;
		if (fd >= 0)
			close(fd);
	}
}

static bool is_listener(void)
{
	struct stat now;
	return !fstat(listener, &now) && now.st_dev == made.st_dev && now.st_ino == made.st_ino;
}

// Whether descriptors or memory are short, which may pass.
static bool is_short(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

// A program that closes descriptors which it does not know may later have a socket of its own at that number. Its clients are
// not ours.
static void *serve_forever(void *unused)
{
	while (is_listener()) {
		int client = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
		if (client >= 0) {
			serve(client);
			close(client);
		} else if (is_short(errno)) {
			usleep(SHORT_us);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			break; // the program has closed it
		}
	}
	gp_log_line("memory that was shared by cuIpcGetMemHandle can not be opened any more: the program has closed "
		    "its socket");
	return NULL;
}

static bool start(void)
{
	struct sockaddr_un address;
	pthread_t thread;
	if (syscall(SYS_getrandom, process, sizeof process, 0) != sizeof process || (listener = open_socket()) < 0)
		return false;
	socklen_t bytes = name_of(process, &address);
	bool runs =
		!fstat(listener, &made) && !bind(listener, (struct sockaddr *)&address, bytes) && !listen(listener, 64);
	runs = runs && gp_thread_start(&thread, serve_forever, NULL);
	if (runs)
		pthread_detach(thread);
	else
		close(listener);
	return runs;
}

const uint8_t *gp_ticket_process(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool runs;
	pthread_mutex_lock(&lock);
	runs = runs || start();
	pthread_mutex_unlock(&lock);
	return runs ? process : NULL;
}

bool gp_ticket_is_own(const uint8_t other[16]) { return listener >= 0 && !memcmp(process, other, sizeof process); }

int gp_ticket_connect(const struct gp_ticket *t)
{
	struct sockaddr_un address;
	socklen_t bytes = name_of(t->process, &address);
	int fd = open_socket();
	if (fd < 0)
		return -1;
	limit_waits(fd); // connecting too
	if (!connect(fd, (struct sockaddr *)&address, bytes) && is_same_user(fd) &&
	    send_packet(fd, &t->number, sizeof t->number, -1))
		return fd;
	close(fd);
	return -1;
}

int gp_ticket_receive(int socket)
{
	char unused;
	int fd;
	if (receive_packet(socket, &unused, 1, &fd))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}
