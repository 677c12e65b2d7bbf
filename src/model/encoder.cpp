#include "model/encoder.h"

#include "model/block.h"

namespace tidepool {

void run_encoder(const Model& model, const Math& math, ForwardPass& pass) {
  const LayerTable& table = model.layer_table();
  for (size_t layer = 0; layer < table.decoder_begin; ++layer) {
    enter_layer(model, math, layer, pass);
    collect_tap(model, math, layer, pass);
    if (table.layers[layer].mode == LayerMode::kFull) write_layer_kv(model, math, layer, pass);
    run_layer(model, math, layer, pass);
  }
  if (table.decoder_begin < table.layers.size()) {
    enter_layer(model, math, table.decoder_begin, pass);
    write_layer_kv(model, math, table.decoder_begin, pass);
  }
  settle_streams(math, model.hyper_connection(), pass);
}

}  // namespace tidepool
