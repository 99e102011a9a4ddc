package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceFile matches the files in which modules say under which terms they may be passed on.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([-._].*)?$`)

// goPackage is what go list says about a package.
type goPackage struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// licences returns the file THIRD_PARTY.txt: the terms of all modules in the programs, on any platform, and of Go itself. Most of these
// terms require that a copy comes with each program. A module without terms is an error.
func licences(ctx context.Context, root string, stderr io.Writer) ([]byte, error) {
	goRoot, err := goOutput(ctx, root, "", stderr, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	const standard = "Go, the standard library"
	folders := map[string][]string{standard: {strings.TrimSpace(string(goRoot))}}
	roots := map[string]string{standard: folders[standard][0]}
	for _, system := range []string{"linux", "darwin", "windows"} {
		out, err := goOutput(ctx, root, system, stderr, append([]string{"list", "-deps", "-json=Dir,Module"}, folderArgs()...)...)
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p goPackage
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list: %w", err)
			}
			if p.Module == nil || p.Module.Main {
				continue
			}
			name := p.Module.Path + " " + p.Module.Version
			folders[name], roots[name] = append(folders[name], p.Dir), p.Module.Dir
		}
	}
	texts := map[string][]string{} // modules by text: many share one
	var missing []string
	for name, dirs := range folders {
		found, err := licencesOf(roots[name], dirs)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			missing = append(missing, name)
		}
		for _, text := range found {
			texts[text] = append(texts[text], name)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		return nil, fmt.Errorf("modules without a file such as LICENSE: %s", strings.Join(missing, ", "))
	}
	return writeLicences(texts), nil
}

func folderArgs() (args []string) {
	for _, p := range programs {
		args = append(args, "./"+p.folder)
	}
	return args
}

func goOutput(ctx context.Context, root, system string, stderr io.Writer, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr, cmd.Env = root, stderr, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if system != "" {
		cmd.Env = append(cmd.Env, "GOOS="+system)
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// licencesOf returns the terms in the folders of packages, and in those above them up to the root of the module: parts of a module can have
// terms of their own.
func licencesOf(root string, dirs []string) ([]string, error) {
	var texts []string
	seen := map[string]bool{}
	for _, dir := range dirs {
		for ; !seen[dir] && strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
			seen[dir] = true
			entries, err := os.ReadDir(dir)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				if e.IsDir() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
					continue
				}
				raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					return nil, err
				}
				text := strings.TrimSpace(strings.ReplaceAll(string(raw), "\r\n", "\n"))
				if text != "" && !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
			}
		}
	}
	return texts, nil
}

func writeLicences(texts map[string][]string) []byte {
	type section struct{ modules, text string }
	var all []section
	for text, modules := range texts {
		slices.Sort(modules)
		all = append(all, section{strings.Join(slices.Compact(modules), "\n"), text})
	}
	slices.SortFunc(all, func(a, b section) int { return strings.Compare(a.modules+a.text, b.modules+b.text) })
	var b bytes.Buffer
	b.WriteString("The programs of Stoker contain the following modules, each under the terms below it.\n")
	for _, e := range all {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), e.modules, e.text)
	}
	return b.Bytes()
}

// textsOf returns the files that come with each program.
func textsOf(root string, thirdParty []byte) ([]entry, error) {
	own, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	return []entry{{"LICENSE", own, 0o644}, {"THIRD_PARTY.txt", thirdParty, 0o644}}, err
}
