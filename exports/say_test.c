// say_test.c - with exports/say.c.
//
// Standard error in all its forms: full, shared, another user's, or not there. Ends well or says what is wrong.
#include "exports/layer.h"
#include "test/units/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static const char line[] = "a line of the log\n";
enum { BYTES = sizeof line - 1, NOBODY = 65534, LIMIT_s = 120 };

static int flags_before;

static void becomes_stderr(int fd)
{
	CHECK(dup2(fd, STDERR_FILENO) == STDERR_FILENO);
	flags_before = fcntl(fd, F_GETFL);
	gp_find_stderr();
}

// Writes until there is no room. Others that share the description find it unchanged.
static size_t fill(void)
{
	size_t written = 0;
	long n;
	while ((n = gp_say(line, BYTES)) > 0)
		written += (size_t)n;
	CHECK(n == GP_NO_ROOM);
	CHECK(fcntl(STDERR_FILENO, F_GETFL) == flags_before);
	return written;
}

// Reads until so many bytes have come: nothing but lines.
static void take(int fd, size_t bytes)
{
	char text[4096];
	size_t done = 0;
	while (done < bytes) {
		ssize_t n = read(fd, text, sizeof text);
		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++, done++)
			CHECK(text[i] == line[done % BYTES]);
	}
}

static void full(int reader, int writer)
{
	becomes_stderr(writer);
	size_t written = fill();
	CHECK(written > 0);
	take(reader, written);
	CHECK(gp_say(line, BYTES) == BYTES);
	take(reader, BYTES);
}

static void pipes(void)
{
	int end[2];
	CHECK(!pipe(end));
	full(end[0], end[1]);
	CHECK(!close(end[0]));
	CHECK(gp_say(line, BYTES) == BYTES); // it has no reader
	CHECK(!close(end[1]));
}

static void sockets(void)
{
	int end[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, end));
	full(end[0], end[1]);
	CHECK(!close(end[0]));
	CHECK(gp_say(line, BYTES) == BYTES);
	CHECK(!close(end[1]));
}

static int open_terminal(int *program)
{
	int user;
	struct termios raw = {0};
	cfmakeraw(&raw);
	CHECK(!openpty(&user, program, NULL, &raw, NULL));
	return user;
}

static void terminals(void)
{
	int program, user = open_terminal(&program);
	full(user, program);
	CHECK(!tcflow(program, TCOOFF)); // Ctrl-S
	CHECK(gp_say(line, BYTES) == GP_NO_ROOM);
	CHECK(!tcflow(program, TCOON));
	CHECK(gp_say(line, BYTES) == BYTES);
	CHECK(!close(user) && !close(program));
}

// Descriptors that cannot be opened again: another user's.
static void others(void)
{
	int end[2], program, user = open_terminal(&program), status;
	CHECK(!pipe(end) && !fchmod(end[1], 0) && !fchmod(program, 0));
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		if (geteuid() == 0)
			CHECK(!setgid(NOBODY) && !setuid(NOBODY));
		full(end[0], end[1]);
		becomes_stderr(program);
		CHECK(gp_say(line, BYTES) == GP_MAY_WAIT);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!close(end[0]) && !close(end[1]) && !close(user) && !close(program));
}

static void files(void)
{
	char name[] = "/tmp/gpreempt-say-XXXXXX", text[64] = "";
	int fd = mkstemp(name);
	CHECK(fd >= 0 && !unlink(name));
	becomes_stderr(fd);
	CHECK(write(fd, "before ", 7) == 7);
	CHECK(gp_say(line, BYTES) == BYTES);
	CHECK(write(fd, "after", 5) == 5); // shares the offset
	CHECK(pread(fd, text, sizeof text, 0) == 7 + BYTES + 5 && !strcmp(text, "before a line of the log\nafter"));
	CHECK(!close(fd));

	fd = open("/dev/full", O_WRONLY);
	becomes_stderr(fd);
	CHECK(gp_say(line, BYTES) == GP_NO_ROOM);
	CHECK(!close(fd));
}

// A program without a standard error may open a file of its own under that number.
static void absent(void)
{
	struct stat is;
	char name[] = "/tmp/gpreempt-say-XXXXXX";
	CHECK(!close(STDERR_FILENO));
	gp_find_stderr();
	CHECK(gp_say(line, BYTES) == BYTES);
	int fd = mkstemp(name);
	CHECK(fd == STDERR_FILENO && !unlink(name));
	CHECK(gp_say(line, BYTES) == BYTES);
	CHECK(!fstat(fd, &is) && is.st_size == 0);
}

int main(void)
{
	sigset_t blocked;
	alarm(LIMIT_s); // ends a process that waits
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGPIPE);
	CHECK(!sigprocmask(SIG_BLOCK, &blocked, NULL));
	pipes();
	sockets();
	terminals();
	others();
	files();
	absent();
	return 0;
}
