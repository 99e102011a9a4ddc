package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// spdx is a document of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/), with the fields that are known of a Go program.
type spdx struct {
	Version       string             `json:"spdxVersion"`
	DataLicense   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Version       string         `json:"versionInfo,omitempty"`
	Download      string         `json:"downloadLocation"`
	FilesAnalyzed bool           `json:"filesAnalyzed"`
	Concluded     string         `json:"licenseConcluded"`
	Declared      string         `json:"licenseDeclared"`
	Copyright     string         `json:"copyrightText"`
	Purpose       string         `json:"primaryPackagePurpose,omitempty"`
	Checksums     []spdxChecksum `json:"checksums,omitempty"`
	Refs          []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// newSBOM returns the list of the modules in a program, which the linker wrote into it. The image and the archive of a platform have the
// same program, so one document describes both.
func newSBOM(file, version, platform string, created time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	name := fmt.Sprintf("%s-%s-%s", strings.TrimSuffix(filepath.Base(file), ".exe"), version, strings.ReplaceAll(platform, "/", "-"))
	d := spdx{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://stoker.io/spdx/" + name + "-" + hex.EncodeToString(sum[:]),
		Creation:  spdxCreation{created.UTC().Format(time.RFC3339), []string{"Tool: stoker-release-" + version}},
	}
	program := golang("SPDXRef-Program", info.Path, version)
	program.Declared, program.Purpose, program.Checksums = "Apache-2.0", "APPLICATION", []spdxChecksum{{"SHA256", hex.EncodeToString(sum[:])}}
	d.Packages = append(d.Packages, program, golang("SPDXRef-Go", "std", strings.TrimPrefix(info.GoVersion, "go")))
	for i, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.Packages = append(d.Packages, golang(fmt.Sprintf("SPDXRef-Module-%d", i+1), m.Path, m.Version))
	}
	d.Relationships = append(d.Relationships, spdxRelationship{d.ID, "DESCRIBES", program.ID})
	for _, p := range d.Packages[1:] {
		d.Relationships = append(d.Relationships, spdxRelationship{program.ID, "CONTAINS", p.ID})
	}
	return json.MarshalIndent(d, "", " ")
}

func golang(id, path, version string) spdxPackage {
	return spdxPackage{
		ID: id, Name: path, Version: version, Download: noAssertion, Concluded: noAssertion, Declared: noAssertion, Copyright: noAssertion,
		Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
	}
}
