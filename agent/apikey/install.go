package apikey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
)

const (
	resources = "config/resources"
	local     = resources + "/local"
	// properties is the singleton with the permissions.
	properties = "security-properties"
	// maxCollections bounds the collections of a gateway: those of Ignition, and its deployment modes.
	maxCollections = 64
	whySaved       = "replaced to grant the agent's API key its permissions"
)

// The security level of the key: Authenticated/Stoker. According to the vendor, a key cannot have a level below Authenticated/Roles.
const (
	levelRoot = "Authenticated"
	levelName = "Stoker"
)

// permissions are the lists of ignition/security-properties that the key needs: a scan needs Write, and Write alone may not imply the others.
var permissions = []string{"accessPermissions", "readPermissions", "writePermissions"}

// install writes the key's resource and its permissions. missing says what it cannot or must not write.
func install(d *disk.Dir, tokenHash string, now time.Time) (changed bool, missing []string, err error) {
	collections, err := d.Folders(resources, maxCollections)
	if err != nil {
		return false, nil, err
	}
	if !slices.Contains(collections, "local") {
		return false, []string{local + " does not exist yet: the gateway makes it at its first start"}, nil
	}
	changed, err = writeToken(d, tokenHash, now)
	if err != nil {
		return changed, nil, err
	}
	found := map[string]bool{}
	for _, c := range collections {
		for _, s := range singletons {
			did, why, err := s.grant(d, resources+"/"+c+"/ignition/"+s.name, found)
			changed = changed || did
			if err != nil {
				return changed, missing, err
			}
			if why != "" {
				missing = append(missing, why)
			}
		}
	}
	if !found[properties] { // a gateway may do without security-levels on the disk
		missing = append(missing, "the gateway has no ignition/"+properties+" yet: it makes it when it is commissioned")
	}
	return changed, missing, nil
}

func writeToken(d *disk.Dir, tokenHash string, now time.Time) (changed bool, err error) {
	config := func(old []byte) ([]byte, error) {
		if gjson.GetBytes(old, "settings.tokenHash").String() == tokenHash {
			return nil, nil
		}
		return json.MarshalIndent(map[string]any{
			"profile": map[string]any{
				"type": "basic-token", "secureChannelRequired": false, "timestamp": now.UnixMilli(),
				"securityLevels": []any{level{Name: levelRoot, Children: []level{{Name: levelName, Children: []level{}}}}},
			},
			"settings": map[string]any{"tokenHash": tokenHash},
		}, "", "  ")
	}
	changed, err = d.Edit(Folder+"/config.json", maxResource, "", config)
	if err != nil {
		return changed, err
	}
	did, err := d.Edit(Folder+"/resource.json", maxResource, "", func(old []byte) ([]byte, error) {
		if gjson.GetBytes(old, "attributes.enabled").Bool() && gjson.GetBytes(old, `files.#(=="config.json")`).Exists() {
			return nil, nil // the gateway may have signed it
		}
		return []byte(tokenResource), nil
	})
	return changed || did, err
}

const tokenResource = `{
  "scope": "A",
  "version": 1,
  "restricted": false,
  "overridable": true,
  "files": [
    "config.json"
  ],
  "attributes": {
    "enabled": true
  }
}`

// level is a security level of Ignition.
type level struct {
	Children    []level `json:"children"`
	Description string  `json:"description,omitempty"`
	Name        string  `json:"name"`
}

// singleton is a resource of the gateway that needs an entry for the key. add returns the content with the entry, or nil if it has the entry.
// lacks says what a user must add in git if the file is git's.
type singleton struct {
	name, lacks string
	add         func(config []byte) ([]byte, error)
}

var singletons = []singleton{
	{"security-levels", `add {"name": "Stoker", "children": []} below the level Authenticated`, declareLevel},
	{properties, `add {"name": "Authenticated", "children": [{"name": "Stoker", "children": []}]} to the securityLevels of accessPermissions, readPermissions and writePermissions, as far as they list any`, grantLevel},
}

// grant adds the entry to the singleton in a folder, and signs it again. It does not create a missing file, which the gateway does; otherwise it
// adds the singleton to found. It signs first: if the agent is killed in between, the next call finds no entry, and does both. missing says
// what a user must add in git.
func (s singleton) grant(d *disk.Dir, folder string, found map[string]bool) (changed bool, missing string, err error) {
	config := folder + "/config.json"
	var next, content []byte
	add := func(old []byte) ([]byte, error) {
		if next = nil; old == nil {
			return nil, nil
		}
		found[s.name] = true
		next, err = s.add(old)
		return next, err
	}
	sign := func() error {
		content = next
		_, err := d.Edit(folder+"/resource.json", maxResource, "", func(old []byte) ([]byte, error) { return signed(old, content), nil })
		return err
	}
	_, err = d.Edit(config, maxResource, "", func(old []byte) ([]byte, error) {
		_, err := add(old)
		return nil, err
	})
	if err != nil || next == nil {
		return false, "", err
	}
	_, owned, err := d.Manifest().Get(config)
	if err == nil && !owned {
		err = sign()
	}
	if err == nil && !owned {
		changed, err = d.Edit(config, maxResource, whySaved, add)
	}
	if owned || errors.Is(err, disk.ErrOwned) {
		return false, fmt.Sprintf("git has %s: %s there", config, s.lacks), nil
	}
	if err == nil && changed && !bytes.Equal(next, content) { // the gateway wrote it meanwhile
		err = sign()
	}
	return changed, "", err
}

// signed returns a resource.json with the signature of its only file, config.json; nil if it has another form or no signature. Then the gateway
// signs it.
func signed(raw, config []byte) []byte {
	r, err := resource.ParseSigned(raw)
	if err != nil || r.Stored() == "" || !slices.Equal(r.Files(), []string{"config.json"}) {
		return nil
	}
	signature, err := r.Signature(resource.Form83, func(w io.Writer, _ string) error {
		_, err := io.Copy(w, bytes.NewReader(config))
		return err
	})
	if err != nil {
		return nil
	}
	return r.WithSignature(signature)
}

// errForm returns the error for a resource of the gateway with an unknown form.
func errForm(what string) error {
	return fmt.Errorf("%s of the gateway does not have the form of Ignition 8.3: create a key in the gateway and name its Secret in spec.gateway.api.secretName", what)
}

// declareLevel adds the key's level to ignition/security-levels.
func declareLevel(config []byte) ([]byte, error) {
	levels := gjson.GetBytes(config, "securityLevels")
	if !gjson.ValidBytes(config) || !levels.IsArray() {
		return nil, errForm("ignition/security-levels")
	}
	const description = "The API key of the Stoker agent"
	for i, root := range levels.Array() {
		if root.Get("name").String() != levelRoot {
			continue
		}
		if hasChild(root) {
			return nil, nil
		}
		return add(config, fmt.Sprintf("securityLevels.%d.children.-1", i), level{Name: levelName, Description: description, Children: []level{}})
	}
	return add(config, "securityLevels.-1", level{Name: levelRoot, Children: []level{{Name: levelName, Description: description, Children: []level{}}}})
}

// grantLevel adds the key's level to the permissions of ignition/security-properties. An empty list admits every key, and stays empty: with an
// entry it would shut out others. A list that needs all of its levels is an error.
func grantLevel(config []byte) ([]byte, error) {
	if !gjson.ValidBytes(config) {
		return nil, errForm("ignition/security-properties")
	}
	next := config
	for _, name := range permissions {
		p := gjson.GetBytes(next, name)
		levels := p.Get("securityLevels")
		switch {
		case !p.Exists() || levels.IsArray() && len(levels.Array()) == 0:
			continue
		case !levels.IsArray():
			return nil, errForm("ignition/security-properties")
		case strings.EqualFold(p.Get("type").String(), "AllOf"):
			return nil, fmt.Errorf("%s of ignition/security-properties needs all of its levels (AllOf): create a key that has them and name its Secret in spec.gateway.api.secretName", name)
		}
		path, item, granted := grantIn(name, levels)
		if granted {
			continue
		}
		var err error
		if next, err = add(next, path, item); err != nil {
			return nil, err
		}
	}
	if bytes.Equal(next, config) {
		return nil, nil
	}
	return next, nil
}

// grantIn returns the level to add to a permission, and the JSON path where; granted reports that the permission admits the key already. The
// level Authenticated without children admits every level below it; a child would narrow it.
func grantIn(name string, levels gjson.Result) (path string, item level, granted bool) {
	leaf := level{Name: levelName, Children: []level{}}
	path, item = name+".securityLevels.-1", level{Name: levelRoot, Children: []level{leaf}}
	for i, root := range levels.Array() {
		if root.Get("name").String() != levelRoot {
			continue
		}
		if hasChild(root) || len(root.Get("children").Array()) == 0 {
			return "", level{}, true
		}
		path, item = fmt.Sprintf("%s.securityLevels.%d.children.-1", name, i), leaf
	}
	return path, item, false
}

// hasChild reports whether a level has the key's level as a child.
func hasChild(root gjson.Result) bool {
	return slices.ContainsFunc(root.Get("children").Array(), func(c gjson.Result) bool { return c.Get("name").String() == levelName })
}

// add appends a level to a list in JSON, and leaves everything else as it is.
func add(config []byte, path string, item level) ([]byte, error) {
	raw, err := json.Marshal(item)
	if err != nil {
		return nil, err
	}
	return sjson.SetRawBytes(bytes.Clone(config), path, raw)
}

// Remove removes the key from a gateway whose agent no longer makes one. The permissions of its security level stay: without a key at that
// level, they have no effect.
func Remove(d *disk.Dir) error {
	return errors.Join(d.RemoveOwn(Folder+"/resource.json"), d.RemoveOwn(Folder+"/config.json"))
}
