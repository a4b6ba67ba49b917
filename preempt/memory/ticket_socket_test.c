// ticket_socket_test.c - with preempt/memory/ticket_socket.c preempt/process/process.c.
//
// Clients that send what nobody asked for leave no descriptor behind. Processes of another user get none, and are asked for none.
#define _GNU_SOURCE
#include "preempt/memory/own.h"
#include "test/units/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t NUMBER = 7;
static int given = -1;

void gp_log_line(const char *text) {}

int gp_ticket_export(uint64_t number, size_t chunk) { return number == NUMBER && chunk < 2 ? dup(given) : -1; }

static int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

// Both chunks, then the end of it. The server is done with the client when that is there.
static void take_all(void)
{
	struct gp_ticket t = {.number = NUMBER};
	memcpy(t.process, gp_ticket_process(), sizeof t.process);
	int from = gp_ticket_connect(&t);
	CHECK(from >= 0);
	for (int i = 0; i < 2; i++) {
		int fd = gp_ticket_receive(from);
		CHECK(fd >= 0);
		close(fd);
	}
	CHECK(gp_ticket_receive(from) < 0);
	CHECK(!recv(from, &t, 1, 0));
	close(from);
}

static int connect_alone(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const uint8_t *id = gp_ticket_process();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char *at = address.sun_path + 1 + sprintf(address.sun_path + 1, "gpreempt-ticket-");
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%02x", id[i]);
	CHECK(!connect(fd, (struct sockaddr *)&address, (socklen_t)(at - (char *)&address)));
	return fd;
}

static void send_unasked(size_t count)
{
	uint64_t number = NUMBER + 1;
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {.header = {CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec part = {&number, sizeof number};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control};
	int fds[2] = {given, given};
	memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
	m.msg_controllen = CMSG_SPACE(count * sizeof(int));
	char byte;
	int to = connect_alone();
	CHECK(sendmsg(to, &m, 0) == sizeof number);
	while (recv(to, &byte, 1, 0) > 0) // until the server is done with it
		;
	close(to);
}

// Whether the server gives a descriptor to a client that asks for one that there is.
static bool is_served(void)
{
	uint64_t number = NUMBER;
	int from = connect_alone();
	bool sent = send(from, &number, sizeof number, MSG_NOSIGNAL) == sizeof number;
	int fd = sent ? gp_ticket_receive(from) : -1;
	close(from);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

// A child becomes another user. It returns 0 if it is not served, and does not take what the server would send.
static int as_another_user(void)
{
	struct gp_ticket t = {.number = NUMBER};
	memcpy(t.process, gp_ticket_process(), sizeof t.process);
	if (setresgid(4242, 4242, 4242) || setresuid(4242, 4242, 4242))
		return 1;
	if (is_served())
		return 2;
	return gp_ticket_connect(&t) < 0 ? 0 : 3;
}

static void refuse_other_users(void)
{
	CHECK(is_served());
	if (geteuid()) { // CI runs as root
		CHECK(!getenv("GPREEMPT_CI"));
		fprintf(stderr, "only root can be another user: not tried\n");
		return;
	}
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child)
		_exit(as_another_user());
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	given = open("/dev/null", O_RDONLY);
	CHECK(given >= 0 && gp_ticket_process());
	take_all();
	int before = descriptors();
	for (int i = 0; i < 3; i++) {
		send_unasked(1);
		send_unasked(2);
		take_all();
	}
	CHECK(descriptors() == before);
	refuse_other_users();
	return 0;
}
