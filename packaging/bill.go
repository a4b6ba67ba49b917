package main

import (
	"os"
	"runtime/debug"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes a bill of materials, in CycloneDX: the binaries, and the modules that are compiled into each.
func (j *job) writeBill(programs map[string][]program) error {
	bill := cyclonedx.NewBOM()
	bill.Metadata = &cyclonedx.Metadata{Timestamp: j.time.Format(time.RFC3339), Component: &cyclonedx.Component{
		BOMRef: "gpreempt", Type: cyclonedx.ComponentTypeApplication, Name: "gpreempt", Version: j.version.native(), Description: summary,
		Licenses:           &cyclonedx.Licenses{{License: &cyclonedx.License{ID: license}}},
		ExternalReferences: &[]cyclonedx.ExternalReference{{Type: cyclonedx.ERTypeVCS, URL: homepage}},
	}}
	components := []cyclonedx.Component{}
	dependencies := []cyclonedx.Dependency{}
	var binaries []string
	for _, arch := range j.archs() {
		for _, p := range programs[arch] {
			kind := cyclonedx.ComponentTypeApplication
			if strings.HasSuffix(p.name, ".so") {
				kind = cyclonedx.ComponentTypeLibrary
			}
			ref := arch + "/" + p.name
			binaries = append(binaries, ref)
			components = append(components, cyclonedx.Component{BOMRef: ref, Type: kind, Name: p.name, Version: j.version.native(),
				Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: p.sum}},
				Properties: &[]cyclonedx.Property{{Name: "gpreempt:architecture", Value: arch}}})
			var uses []string
			for _, m := range modules(map[string][]program{arch: {p}}) {
				uses = append(uses, packageURL(m))
			}
			dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &uses})
		}
	}
	for _, m := range modules(programs) {
		url := packageURL(m)
		components = append(components, cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url})
	}
	bill.Components = &components
	dependencies = append([]cyclonedx.Dependency{{Ref: "gpreempt", Dependencies: &binaries}}, dependencies...)
	bill.Dependencies = &dependencies
	return j.create("gpreempt-"+j.version.tag()+".cdx.json", func(out *os.File) error {
		return cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bill)
	})
}

// packageURL names a module as databases of vulnerabilities do.
func packageURL(m debug.Module) string { return "pkg:golang/" + m.Path + "@" + m.Version }
