package configs

import (
	"strings"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	for text, want := range map[string]MemoryLimit{"": {}, "40%": {Part: 0.4}, "100%": {Part: 1}, "10240MB": {MB: 10240}, "10GB": {MB: 10240}} {
		if got, ok := ParseMemoryLimit(text); !ok || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"0%", "101%", "40", "4.5%", "-1MB", "0GB", "GB", "100000001MB", "4000000000GB", "99999999999999999999MB", "10 GB", "10gb", "%%"} {
		if got, ok := ParseMemoryLimit(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestMemoryLimitOfTheEnvironment(t *testing.T) {
	was := Config{}
	was.Memory.Limit = MemoryLimit{MB: 5}
	for value, want := range map[string]MemoryLimit{"": {MB: 5}, "40%": {Part: 0.4}, "10GB": {MB: 10240}, "none": {}} {
		c := was
		if err := ApplyMemoryLimitEnv(&c, value); err != nil || c.Memory.Limit != want {
			t.Errorf("%q: %+v, %v", value, c.Memory.Limit, err)
		}
	}
	c := was
	err := ApplyMemoryLimitEnv(&c, "10")
	if err == nil || c != was || !strings.HasPrefix(err.Error(), `GPREEMPT_MEMORY_LIMIT: memory limit "10": must be a whole number with MB or GB (1 GB = 1024 MB), as 10GB, or with %, 1 to 100, `) {
		t.Errorf("%+v, %v", c.Memory.Limit, err)
	}
}
