package v1alpha1

// GatewaySpec says how the agent reaches the gateway. Without api, the agent writes files but cannot make the gateway scan them, and the
// status says so.
type GatewaySpec struct {
	// Port of the gateway's web server.
	// +optional
	// +kubebuilder:default=8088
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
	// If true, the gateway's port uses https.
	// +optional
	TLS bool `json:"tls,omitempty"`
	// How the gateway's certificate is checked. Ignored without tls.
	// +optional
	TLSConfig *GatewayTLSConfig `json:"tlsConfig,omitempty"`
	// The API key with which the agent asks the gateway: one of your own, from a Secret, or one that the agent makes.
	// +optional
	API *GatewayAPI `json:"api,omitempty"`
}

// GatewayTLSConfig says how the gateway's certificate is checked.
type GatewayTLSConfig struct {
	// PEM certificates to trust for the gateway, instead of those of the system.
	// +optional
	CASecretRef *SecretKeyRef `json:"caSecretRef,omitempty"`
	// Host name that the certificate must have. Default: the host of the gateway.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`
	ServerName string `json:"serverName,omitempty"`
	// If true, the certificate is not verified.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// GatewayAPI says which API key the agent uses.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretName) != (has(self.managed) && self.managed)",message="set one of secretName and managed"
type GatewayAPI struct {
	// Name of the Secret with the key, which is name:key, as Ignition shows it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	SecretName string `json:"secretName,omitempty"`
	// Key within the Secret.
	// +optional
	// +kubebuilder:default="apiKey"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	SecretKey string `json:"secretKey,omitempty"`
	// If true, each agent makes a key for its own gateway, new at every start of the pod, and grants it the gateway's permissions. It needs
	// Ignition 8.3, and pods created after this was set.
	// +optional
	Managed bool `json:"managed,omitempty"`
}
