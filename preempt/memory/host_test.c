// host_test.c - with preempt/memory/host.c.
//
// What machines and control groups leave, from files as Linux writes them, and from files that make no sense.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"
#include "test/units/check.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GiB (1ull << 30)

static char root[] = "/tmp/host_test.XXXXXX";

static void put(const char *path, const char *text)
{
	char full[512], *slash;
	snprintf(full, sizeof full, "%s/%s", root, path);
	for (slash = full + strlen(root); (slash = strchr(slash + 1, '/'));) {
		*slash = '\0';
		mkdir(full, 0700);
		*slash = '/';
	}
	FILE *file = fopen(full, "w");
	CHECK(file && fputs(text, file) >= 0 && !fclose(file));
}

static void gone(const char *path)
{
	char full[512];
	snprintf(full, sizeof full, "%s/%s", root, path);
	CHECK(!unlink(full));
}

static uint64_t left(void) { return gp_host_left(root); }

static void test_machine(void)
{
	CHECK(left() == 0); // nothing is known
	put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:        1000 kB\nMemAvailable:   33554432 kB\n");
	CHECK(left() == 28 * GiB); // 32 less a sixteenth of 64
	put("proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   4194304 kB\n");
	CHECK(left() == 0);
	put("proc/meminfo", "MemTotal: 99999999999999999999999 kB\nMemAvailable: 99999999999999999999999 kB\n");
	CHECK(left() == 0);
	put("proc/meminfo", "MemTotal: -1 kB\nMemAvailable: lots\n");
	CHECK(left() == 0);
	put("proc/meminfo", "MemTotal:       1073741824 kB\nMemAvailable:   1073741824 kB\n");
	CHECK(left() == 960 * GiB);
}

static void test_version_2(void)
{
	put("proc/self/mountinfo",
	    "20 1 0:5 / / rw - ext4 /dev/vda rw\n"
	    "31 20 0:26 / /sys/fs/c\\040group rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
	put("proc/self/cgroup", "0::/user.slice/job/part\n");
	CHECK(left() == 960 * GiB); // no limits
	put("sys/fs/c group/user.slice/job/part/memory.max", "max\n");
	put("sys/fs/c group/user.slice/job/part/memory.high", "max\n");
	put("sys/fs/c group/user.slice/job/part/memory.current", "1000\n");
	CHECK(left() == 960 * GiB);
	put("sys/fs/c group/user.slice/job/memory.max", "34359738368\n");
	put("sys/fs/c group/user.slice/job/memory.current", "10737418240\n");
	CHECK(left() == 20 * GiB); // 32 less 2 less 10
	put("sys/fs/c group/user.slice/job/memory.high", "17179869184\n");
	CHECK(left() == 5 * GiB);
	put("sys/fs/c group/user.slice/job/memory.stat", "anon 5\ninactive_file 2147483648\nactive_file 7\n");
	CHECK(left() == 7 * GiB);
	put("sys/fs/c group/user.slice/memory.max", "17179869184\n");
	put("sys/fs/c group/user.slice/memory.current", "99999999999999999999999\n");
	CHECK(left() == 0);
	gone("sys/fs/c group/user.slice/memory.max");
	put("proc/self/cgroup", "0::/user.slice/job/part/../../..\n"); // of another namespace: the top alone
	CHECK(left() == 960 * GiB);
	put("proc/self/cgroup", "0::/\n");
	CHECK(left() == 960 * GiB);
	put("sys/fs/c group/memory.max", "17179869184\n"); // a container's own top
	put("sys/fs/c group/memory.current", "0\n");
	CHECK(left() == 15 * GiB);
	put("proc/self/cgroup", "nonsense\n0::");
	CHECK(left() == 15 * GiB);
	put("proc/self/cgroup", "");
	CHECK(left() == 960 * GiB);
}

static void test_version_1(void)
{
	put("proc/self/mountinfo",
	    "32 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	    "33 20 0:28 /docker/abc /sys/fs/cgroup/memory ro master:1 - cgroup cgroup rw,memory\n");
	put("proc/self/cgroup", "5:cpu:/docker/abc\n4:hugetlb,memory:/docker/abc/inner\n0::/x\n");
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");
	put("sys/fs/cgroup/memory/memory.usage_in_bytes", "5368709120\n");
	put("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 1073741824\n");
	CHECK(left() == 7 * GiB / 2); // 8 less a half less 4
	put("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n");
	put("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "0\n");
	CHECK(left() == GiB / 16 * 15);
	put("proc/self/cgroup", "4:memory:/elsewhere\n"); // outside of what is mounted: its top
	CHECK(left() == 7 * GiB / 2);
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); // none
	CHECK(left() == 960 * GiB);
	put("proc/self/mountinfo",
	    "33 - cgroup\n - \n33 20 0:28 / - cgroup cgroup memory\n33 20 0:28 /a/b\\777 - cgroup c memory");
	CHECK(left() == 960 * GiB);
}

int main(void)
{
	char command[64];
	CHECK(mkdtemp(root));
	test_machine();
	test_version_2();
	test_version_1();
	snprintf(command, sizeof command, "rm -r %s", root);
	CHECK(system(command) == 0);
	return 0;
}
