# tidepool_embed_web(TARGET FOLDER): compiles the files of FOLDER into TARGET as the table of server/web_assets.h.
set(TIDEPOOL_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/embed_web.cmake)

function(tidepool_embed_web target folder)
  file(GLOB files CONFIGURE_DEPENDS ${folder}/*)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/web_assets.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DOUTPUT=${output} -P ${TIDEPOOL_EMBED_SCRIPT}
    DEPENDS ${files} ${TIDEPOOL_EMBED_SCRIPT} COMMENT "Embedding the web page")
  target_sources(${target} PRIVATE ${output})
endfunction()
