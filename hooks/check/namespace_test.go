package check

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/test/clientset"
)

// A right is missing, and the user may not read the ClusterRole: the cause can be the role or a binding.
func TestBindingsWithoutRightToReadRole(t *testing.T) {
	core := clientset.New()
	core.PrependReactor("create", "localsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.LocalSubjectAccessReview{}, nil
	})
	core.PrependReactor("get", "clusterroles", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "clusterroles"}, agentRole, nil)
	})
	l := Checker{Namespace: "site"}
	l.Core = core
	found := l.bindings(t.Context(), []string{"gateway"})
	require.Len(t, found, 2)
	assert.Equal(t, Failed, found[0].State)
	assert.Equal(t, "ServiceAccount gateway has no right to write SyncReports: its agents cannot report", found[0].Message)
	assert.Equal(t, Unknown, found[1].State)
	assert.Contains(t, found[1].Message, "ClusterRole stoker-agent cannot be read: ")
}
