package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpreempt/gpreempt/configs"
)

// LoadConfig reads the configuration as the library would; file, if not empty, replaces GPREEMPT_CONFIG. path is "" if the
// defaults are in force; passed says why a file is ignored.
func LoadConfig(file string) (config configs.Config, path string, passed, err error) {
	getenv := func(key string) string {
		if key == "GPREEMPT_CONFIG" && file != "" {
			return file
		}
		return os.Getenv(key)
	}
	config, path, passed, err = configs.Read(getenv)
	if err != nil {
		if rest, isName := strings.CutPrefix(err.Error(), "GPREEMPT_CONFIG = "); isName && file != "" {
			err = fmt.Errorf("--config %s", rest)
		}
		return configs.Config{}, path, passed, err
	}
	return config, path, passed, configs.ApplyLogEnv(&config, getenv("GPREEMPT_LOG"))
}
