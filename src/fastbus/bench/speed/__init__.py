"""Speed of the E-step through the public call, beside plain torch, the peers' loops and the device's own ceilings."""
