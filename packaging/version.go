package main

import (
	"fmt"
	"regexp"
	"strings"
)

// version is a version of git describe, taken apart: v0.2.0-rc.1-5-gabc1234-dirty.
type version struct {
	number string // 0.2.0; 0.0.0 without a tag
	stage  string // alpha, beta or rc, with
	count  string // its number
	local  string // 5.gabc1234.dirty: what came after the tag
}

var (
	described = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-(alpha|beta|rc)\.?(\d+))?(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?$`)
	untagged  = regexp.MustCompile(`^([0-9a-f]{7,40})(-dirty)?$`)
)

func parseVersion(given string) (version, error) {
	if m := described.FindStringSubmatch(given); m != nil {
		return version{m[1], m[2], m[3], local(m[4], m[5], m[6])}, nil
	}
	if m := untagged.FindStringSubmatch(given); m != nil {
		return version{number: "0.0.0", local: local("g"+m[1], m[2])}, nil
	}
	return version{}, fmt.Errorf("version %q: must be like v1.2.3, v1.2.3-rc.1, v1.2.3-4-gabcdef0 or abcdef0, each with or without -dirty", given)
}

func local(parts ...string) string {
	var given []string
	for _, part := range parts {
		if part = strings.TrimPrefix(part, "-"); part != "" {
			given = append(given, part)
		}
	}
	return strings.Join(given, ".")
}

// native is the version of a deb or an rpm: a ~ sorts before nothing, a + behind it.
func (v version) native() string {
	return v.join("~"+v.stage, "+")
}

// wheel is the version by PEP 440.
func (v version) wheel() string {
	return v.join(map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[v.stage], "+")
}

// tag is the version for names of files and of images, which may have no + or ~.
func (v version) tag() string { return v.join("-"+v.stage, "-") }

func (v version) join(stage, local string) string {
	text := v.number
	if v.stage != "" {
		text += stage + v.count
	}
	if v.local != "" {
		text += local + v.local
	}
	return text
}
