// Package crd tests the CRDs with the code of a real API server. It checks that they are accepted
// (structural schema, cost of the CEL rules), and how valid and invalid objects are judged. The package is
// a module of its own because of the API server's dependencies.
package crd

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

const folder = "../../charts/stoker/files/crds/"

// C2: The API server accepts the CRD. Unbounded lists, maps and strings would make the estimated cost of
// the rules too high, and only this test shows it.
func TestAPIServerAcceptsCRD(t *testing.T) {
	crd, _ := load(t, "gatewaysyncs")
	assert.Empty(t, crdvalidation.ValidateCustomResourceDefinition(context.Background(), crd))
}

// F4, F5, C2: The CRD and the Go validation give the same verdict on every object of the table.
func TestCRDMatchesGoValidation(t *testing.T) {
	server := newServer(t)
	for _, c := range verdicts.Table() {
		t.Run(c.Name, func(t *testing.T) {
			object := asJSON(t, c.Object())
			refused := server.admit(object)
			goRefused := c.Undecodable || len(validation.GatewaySync(fromObject(t, object))) > 0
			switch { // GoOnly and CRDOnly say why only one of the two refuses the object
			case c.GoOnly != "":
				assert.Empty(t, refused, "the CRD rejects it now: remove GoOnly from the table")
				assert.True(t, goRefused)
			case c.CRDOnly != "":
				assert.NotEmpty(t, refused, "the CRD accepts it now: remove CRDOnly from the table")
				assert.False(t, goRefused)
			case c.Refused != "" || c.Undecodable:
				assert.NotEmpty(t, refused)
				assert.True(t, goRefused)
			default:
				assert.Empty(t, refused)
				assert.False(t, goRefused)
			}
		})
	}
}

// C7: The API server's message reaches the caller, and from there the status of tools that apply for a
// user. It must not contain an address, which may hold a password, or a regular expression of 200
// characters, which does not help.
func TestValidationMessages(t *testing.T) {
	server := newServer(t)
	for name, c := range map[string]struct{ spec, says string }{
		"repository over FTP":     {`git: {repo: "ftp://user:S3CR3T@host/x"}`, "use https://host/path"},
		"repository with a query": {`git: {repo: "https://host/x?token=S3CR3T"}`, "without ? and #"},
		"long repository":         {`git: {repo: "https://user:S3CR3T@host/` + strings.Repeat("x", 2048) + `"}`, "2048"},
		"API of an app over FTP":  {`git: {auth: {githubApp: {appId: 1, installationId: 2, privateKeySecretRef: {name: a, key: b}, apiBaseURL: "ftp://user:S3CR3T@h"}}}`, "use https://host/path of the API"},
		"API of a forge over FTP": {`bidirectional: {apiBaseURL: "ftp://user:S3CR3T@h"}`, "use https://host/path of the API"},
		"debounce of 1h":          {`bidirectional: {debounce: 1h}`, "from 1s to 10m"},
		"author without address":  {`bidirectional: {authors: {admin: Jane}}`, "Name <mail@host>"},
		"ref with a space":        {`git: {ref: my branch}`, "nor hold a space"},
		"path with an empty part": {`sync: {profiles: {default: {mappings: [{source: a//b, destination: a}]}}}`, "empty parts"},
		"path with backslashes":   {`sync: {profiles: {default: {mappings: [{source: a\b, destination: a}]}}}`, "no backslashes"},
		"duration in days":        {`progressDeadline: 1d`, "such as 30s, 5m or 1h30m"},
		"long duration":           {`progressDeadline: 99999999999999999999h`, "from 1s to 24h"},
		"interval without unit":   {`polling: {interval: "600"}`, "such as 30s, 5m or 1h30m"},
		"image with a tag":        {`agent: {image: {repository: "registry/agent:1.0"}}`, "a tag goes into tag"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := server.admit(asJSON(t, (&verdicts.Case{Spec: parse(t, c.spec)}).Object()))
			require.Len(t, errs, 1)
			assert.ErrorContains(t, errs[0], c.says)
			assert.NotContains(t, errs[0].Error(), "S3CR3T")
			assert.NotContains(t, errs[0].Error(), "evaluating rule")
			assert.NotContains(t, errs[0].Error(), "[^")
		})
	}
}

// The defaults exist both as markers and as code. Both must have the same effect.
func TestCRDDefaultsMatchCode(t *testing.T) {
	server := newServer(t)
	for name, spec := range map[string]string{
		"smallest":        `{}`,
		"mapping":         `sync: {profiles: {default: {mappings: [{source: a, destination: b}]}}}`,
		"polling and TLS": `{sync: {defaults: {prune: none}}, polling: {enabled: false}, gateway: {tls: true, api: {secretName: a}}}`,
		"bidirectional":   `bidirectional: {enabled: true}`,
		"guardrails":      `bidirectional: {enabled: true, guardrails: {maxFileSize: 1Ki, excludePatterns: []}}`,
		"git token":       `git: {auth: {token: {secretRef: {name: a, key: b}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := verdicts.Case{Spec: parse(t, spec)}
			bare := fromObject(t, asJSON(t, c.Object()))
			object := asJSON(t, c.Object())
			require.Empty(t, server.admit(object))
			stored := fromObject(t, object)
			require.NotEqual(t, bare.Spec, stored.Spec, "the API server must apply defaults")
			assert.Equal(t, inForce(t, bare), inForce(t, stored))
		})
	}
}

// Argo CD compares a list of a custom resource as a whole. If the API server filled in a default within one, the object would differ from
// git forever, and self-heal would apply it again and again.
func TestNoDefaultsInLists(t *testing.T) {
	var walk func(t *testing.T, at string, s *apiextensions.JSONSchemaProps, inList bool)
	walk = func(t *testing.T, at string, s *apiextensions.JSONSchemaProps, inList bool) {
		assert.False(t, inList && s.Default != nil, "%s: apply the default in Go, and name it in the description", at)
		for name, p := range s.Properties {
			walk(t, at+"."+name, &p, inList)
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			walk(t, at+".*", s.AdditionalProperties.Schema, inList)
		}
		if s.Items != nil && s.Items.Schema != nil {
			walk(t, at+"[]", s.Items.Schema, true)
		}
	}
	for _, plural := range []string{"gatewaysyncs", "configsyncs"} {
		t.Run(plural, func(t *testing.T) {
			_, props := load(t, plural)
			spec := props.Properties["spec"]
			walk(t, "spec", &spec, false)
		})
	}
}

func TestAPIServerDropsUnknownFields(t *testing.T) {
	c := verdicts.Case{Spec: verdicts.O{"colour": "green"}}
	object := asJSON(t, c.Object())
	require.Empty(t, newServer(t).admit(object))
	assert.NotContains(t, object["spec"], "colour")
	assert.Contains(t, object["spec"], "git")
}

// inForce returns what the code derives from an object whose defaults may be unset.
func inForce(t *testing.T, gs *v1alpha1.GatewaySync) map[string]any {
	t.Helper()
	s := &gs.Spec
	period := effective.PollingInterval(&s.Polling)
	deadline := effective.ProgressDeadline(s)
	effective, err := effective.Of(gs, "", map[string]string{v1alpha1.AnnotationServicePath: "services/a"})
	require.NoError(t, err)
	user := ""
	if s.Git.Auth != nil {
		user = s.Git.Auth.Token.User()
	}
	return map[string]any{
		"polling": s.Polling.IsEnabled(), "period": period, "deadline": deadline, "webhook": s.Webhook.IsEnabled(),
		"port": s.Gateway.EffectivePort(), "key": s.Gateway.APIKey(), "refs": s.Git.RequestableRefs(), "user": user,
		"effective": effective,
	}
}

// server processes an object like the API server on creation.
type server struct {
	schema *schema.Structural
	values schemavalidation.SchemaValidator
	rules  *cel.Validator
}

func newServer(t *testing.T) *server {
	t.Helper()
	return newServerOf(t, "gatewaysyncs")
}

func newServerOf(t *testing.T, plural string) *server {
	t.Helper()
	_, props := load(t, plural)
	structural, err := schema.NewStructural(props)
	require.NoError(t, err)
	values, _, err := schemavalidation.NewSchemaValidator(props)
	require.NoError(t, err)
	return &server{structural, values, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// admit prunes the object, applies defaults, and returns its validation errors.
func (s *server) admit(object map[string]any) field.ErrorList {
	pruning.Prune(object, s.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.schema)
	defaulting.Default(object, s.schema)
	errs := apivalidation.ValidateObjectMetaAccessor(&unstructured.Unstructured{Object: object}, true,
		apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, schemavalidation.ValidateCustomResource(nil, object, s.values)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.schema, object)...)
	broken, _ := s.rules.Validate(context.Background(), nil, s.schema, object, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, broken...)
}

func load(t *testing.T, plural string) (*apiextensions.CustomResourceDefinition, *apiextensions.JSONSchemaProps) {
	t.Helper()
	data, err := os.ReadFile(folder + "stoker.io_" + plural + ".yaml")
	require.NoError(t, err)
	var v1 apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.UnmarshalStrict(data, &v1))
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	v1.Status.StoredVersions = []string{v1alpha1.GroupVersion.Version}
	crd := &apiextensions.CustomResourceDefinition{}
	require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, crd, nil))
	props, err := apiextensions.GetSchemaForVersion(crd, v1alpha1.GroupVersion.Version)
	require.NoError(t, err)
	return crd, props.OpenAPIV3Schema
}

// asJSON converts an object to the types that decoded JSON has: map[string]any, []any, int64 and others.
func asJSON(t *testing.T, object verdicts.O) map[string]any {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	var u unstructured.Unstructured
	require.NoError(t, u.UnmarshalJSON(data))
	return u.Object
}

// parse returns a spec that is written as YAML.
func parse(t *testing.T, text string) (spec verdicts.O) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &spec))
	return spec
}

func fromObject(t *testing.T, object map[string]any) *v1alpha1.GatewaySync {
	t.Helper()
	gs, err := decode.Unstructured(object)
	require.NoError(t, err)
	return gs
}

// Short names and columns are a contract with kubectl users.
func TestKubectlOutput(t *testing.T) {
	crd, _ := load(t, "gatewaysyncs")
	assert.Equal(t, []string{"gs", "gsync"}, crd.Spec.Names.ShortNames)
	assert.Equal(t, apiextensions.NamespaceScoped, crd.Spec.Scope)
	require.Len(t, crd.Spec.Versions, 1)
	version := crd.Spec.Versions[0]
	columns := version.AdditionalPrinterColumns
	if len(columns) == 0 {
		columns = crd.Spec.AdditionalPrinterColumns
	}
	var narrow, wide []string
	paths := map[string]string{}
	for _, c := range columns {
		if wide = append(wide, c.Name); c.Priority == 0 {
			narrow = append(narrow, c.Name)
		}
		paths[c.Name] = c.JSONPath
	}
	// The first columns are those of stoker get (docs/reference/status.md). The message can be long, so it is last.
	assert.Equal(t, []string{"Ref", "Commit", "Gateways", "Ready", "Confirmed", "Age", "Status"}, narrow)
	assert.Equal(t, []string{"Ref", "Commit", "Gateways", "Ready", "Confirmed", "Age", "Status", "Last Sync", "Repo", "Message"}, wide)
	assert.Equal(t, ".status.target.refShort", paths["Ref"], "the column must show the desired ref, not the last synced one")
	assert.Equal(t, ".status.target.commitShort", paths["Commit"])
	subresources := version.Subresources
	if subresources == nil {
		subresources = crd.Spec.Subresources
	}
	require.NotNil(t, subresources)
	assert.NotNil(t, subresources.Status)
}

// filter matches a filter on a list, such as the condition of a type.
var filter = regexp.MustCompile(`\[\?\([^)]*\)\]`)

// fieldOf returns the schema of the field that a column shows, or nil if the kind does not have it.
func fieldOf(root *apiextensions.JSONSchemaProps, path string) *apiextensions.JSONSchemaProps {
	at := root
	for name := range strings.SplitSeq(strings.TrimPrefix(filter.ReplaceAllString(path, "[]"), "."), ".") {
		name, picked := strings.CutSuffix(name, "[]")
		next, known := at.Properties[name]
		switch {
		case !known, picked && next.Items == nil:
			return nil
		case picked:
			at = next.Items.Schema
		default:
			at = &next
		}
	}
	return at
}

// A column whose field has been renamed is empty without any error.
func TestPrinterColumns(t *testing.T) {
	columns := map[string][]string{}
	for _, plural := range []string{"gatewaysyncs", "configsyncs", "synctargets", "syncreports"} {
		t.Run(plural, func(t *testing.T) {
			crd, props := load(t, plural)
			require.Len(t, crd.Spec.Versions, 1)
			list := crd.Spec.Versions[0].AdditionalPrinterColumns
			if len(list) == 0 {
				list = crd.Spec.AdditionalPrinterColumns
			}
			require.NotEmpty(t, list, plural)
			for _, c := range list {
				columns[plural] = append(columns[plural], c.Name)
				if c.JSONPath != ".metadata.creationTimestamp" { // every object has it
					assert.NotNil(t, fieldOf(props, c.JSONPath), "%s: %s", plural, c.JSONPath)
				}
			}
			assert.Nil(t, fieldOf(props, ".status.conditions[?(@.type==\"Ready\")].verdict"), "%s: fieldOf must not find a missing field", plural)
		})
	}
	assert.Equal(t, []string{"Revision", "Targets", "Ready", "Age", "Ref", "Path", "Last Sync", "Account", "Repo", "Status"}, columns["configsyncs"])
	assert.Equal(t, []string{"Gateway", "Phase", "Reason", "Ref", "Drift", "Last Sync", "Commit", "Message"}, columns["syncreports"])
	assert.Equal(t, []string{"Ref", "Commit", "Lead", "Age"}, columns["synctargets"])
}

// F4, F5, C2: the CRD of the ConfigSync is accepted, and gives the verdicts of the Go validation.
func TestConfigSyncMatchesGoValidation(t *testing.T) {
	crd, _ := load(t, "configsyncs")
	require.Empty(t, crdvalidation.ValidateCustomResourceDefinition(context.Background(), crd))
	assert.Equal(t, []string{"csync"}, crd.Spec.Names.ShortNames)
	assert.Equal(t, apiextensions.NamespaceScoped, crd.Spec.Scope)
	server := newServerOf(t, "configsyncs")
	for _, c := range verdicts.ConfigSyncs() {
		t.Run(c.Name, func(t *testing.T) {
			object := asJSON(t, c.Object())
			refused := server.admit(object)
			data, err := json.Marshal(object)
			require.NoError(t, err)
			cs, err := decode.ConfigSync(data)
			require.NoError(t, err)
			if c.Refused == "" {
				assert.Empty(t, refused)
				assert.Empty(t, validation.ConfigSync(cs))
				return
			}
			assert.NotEmpty(t, refused)
			assert.NotEmpty(t, validation.ConfigSync(cs))
		})
	}
}

// The defaults exist both as markers and as code.
func TestConfigSyncDefaultsMatchCode(t *testing.T) {
	c := verdicts.Case{Kind: "ConfigSync"}
	inForce := func(object map[string]any) map[string]any {
		data, err := json.Marshal(object)
		require.NoError(t, err)
		cs, err := decode.ConfigSync(data)
		require.NoError(t, err)
		deadline, err := effective.ConfigProgressDeadline(&cs.Spec)
		require.NoError(t, err)
		refresh, err := effective.RefreshInterval(&cs.Spec)
		require.NoError(t, err)
		path, _ := cs.Spec.Source.Paths()
		return map[string]any{"deadline": deadline, "refresh": refresh, "account": cs.Spec.Account(), "path": path, "waits": cs.Spec.Apply.Waits(), "ref": cs.Spec.Source.Git.Ref()}
	}
	bare := inForce(asJSON(t, c.Object()))
	object := asJSON(t, c.Object())
	require.Empty(t, newServerOf(t, "configsyncs").admit(object))
	assert.Equal(t, bare, inForce(object))
	assert.Contains(t, object["spec"], "prune", "admit must have added the defaults")
}
